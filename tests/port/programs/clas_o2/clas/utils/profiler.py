import paddle.profiler as profiler

_profiler_step_id = 0
_prof = None


def add_profiler_step(options_str=None):
    """Enable the operator-level timing using PaddlePaddle's profiler."""
    if options_str is None:
        return
    global _prof, _profiler_step_id
    options = dict(item.split("=") for item in options_str.split(";"))
    first, last = (int(step) for step in options.get("batch_range", "10,20").strip("[]").split(","))
    if _prof is None:
        _prof = profiler.Profiler(scheduler=(first, last), timer_only=False)
        _prof.start()
    else:
        _prof.step()
    if _profiler_step_id == last:
        _prof.stop()
        _prof.summary(op_detail=True, time_unit="ms")
        _prof = None
    _profiler_step_id += 1
