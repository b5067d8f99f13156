"""How much memory an action takes: as a GPU's allocator counts it, or as a CPU's tells the profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import tensorflow as tf

from ampbridge_tensorflow import _private
from ampbridge_tensorflow.probing import devices


def peak_memory(action: Callable[[], None]) -> int | None:
    """See ``Backend.peak_memory``.

    On a CPU it is what TensorFlow's profiler is told by an allocator that counts: that of oneDNN, which
    TensorFlow takes by itself on CPUs with AVX512-VNNI and newer ones, or that of the environment
    variable ``TF_CPU_ALLOCATOR_USE_BFC=1``. None without them, and while somebody else is profiling.
    """
    device = devices()[0]
    if device.kind == "gpu":
        name = device.name.upper()
        before = tf.config.experimental.get_memory_info(name)["current"]
        tf.config.experimental.reset_memory_stats(name)
        action()
        peak: int = tf.config.experimental.get_memory_info(name)["peak"] - before
        return peak
    if device.kind != "cpu" or _private.value(_private.PROFILE) is None:
        action()
        return None
    only_memory = tf.profiler.experimental.ProfilerOptions(host_tracer_level=1)
    with TemporaryDirectory() as folder:
        try:
            tf.profiler.experimental.start(folder, options=only_memory)
        except tf.errors.AlreadyExistsError:
            action()
            return None
        try:
            action()
        finally:
            tf.profiler.experimental.stop()
        changes = [c for file in Path(folder).rglob("*.xplane.pb") for c in _changes(file)]
    if not changes:
        return None
    _, _, before = min(changes)
    return max(0, max(held for _, held, _ in changes) - before)


def _changes(profile: Path) -> Iterator[tuple[int, int, int]]:
    """The time of each change, and the bytes that the allocator holds after it and before it."""
    space = _private.value(_private.PROFILE)()
    space.ParseFromString(profile.read_bytes())
    signs = {"MemoryAllocation": 1, "MemoryDeallocation": -1}
    for plane in space.planes:
        stats = {number: each.name for number, each in plane.stat_metadata.items()}
        kinds = {number: each.name for number, each in plane.event_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                sign = signs.get(kinds[event.metadata_id])
                if sign is None:
                    continue
                told = {stats[s.metadata_id]: s.int64_value or s.uint64_value for s in event.stats}
                held, size = told["bytes_allocated"], told["allocation_bytes"]
                yield line.timestamp_ns * 1000 + event.offset_ps, held, held - sign * size
