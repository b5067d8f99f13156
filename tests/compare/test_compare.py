"""Comparisons that are really run: frameworks in processes of their own, and what becomes of failures."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys

import numpy as np
import pytest
from processes import run_python, wait_until

import ampbridge as amp
from ampbridge.adapters import registry
from ampbridge_compare import compare, processes
from ampbridge_compare.op_lists import OpLists
from ampbridge_compare.op_matrix import OpMatrix, shown
from ampbridge_compare.runs import Job, Run

RECIPE = amp.Recipe(amp.Policy("O1"), amp.Scaling(init_scale=2.0**24, growth_interval=60))


@pytest.fixture(scope="session")
def data(ran):
    return json.loads((ran[1] / "comparison.json").read_text())


def runs(data, kind):
    return {run["backend"]: run for run in data["runs"] if run["kind"] == kind}


# -- every framework


def test_every_backend_reports(ran, data, backends):
    done, _ = ran
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert list(runs(data, "ampbridge")) == backends
    assert list(runs(data, "native")) == [name for name in backends if name not in ("numpy", "jax")]
    for name in backends:
        assert f"\n{name} " in done.stdout
    for run in data["runs"]:
        assert run["error"] is None
        assert len(run["loss"]) == len(run["scale"]) == len(run["applied"]) == 40


def test_all_start_from_the_same_weights_on_the_same_data(data):
    """The first loss in float32 is NumPy's; in float16 it differs by its rounding."""
    exact = data["reference"]["loss"][0]
    for run in data["runs"]:
        assert run["loss"][0] == pytest.approx(exact, rel=1e-3), run["label"]


def test_scales_fall_after_each_overflow(data):
    for run in data["runs"]:
        scales = run["scale"]
        for before, after, applied in zip(scales, scales[1:], run["applied"], strict=False):
            assert applied == (after >= before), run["label"]
    assert runs(data, "ampbridge")["numpy"]["applied"].count(False) >= 5


def test_gradient_errors_are_those_of_float16(data):
    """Between a quarter and four times its unit roundoff: less would not be float16, more a mistake."""
    for run in data["runs"]:
        error = run["gradient_error"]["total"]
        if run["kind"] == "native" and run["backend"] == "paddle":
            assert error < 1e-5
        else:
            assert 2.0**-13 < error < 2.0**-9, run["label"]


def test_the_float64_reference_is_torchs_float64(data, backends):
    """NumPy's float64 gradients of the first batch, against torch's own, in a process of its own."""
    if "torch" not in backends:
        pytest.skip("torch is not installed")
    code = """
import json, numpy as np, torch
from ampbridge import workloads
from ampbridge_numpy.reference import float64_gradients
build = workloads.find("digits-mlp")
theirs = build("torch", 0)
x, y = theirs.batches[0]
theirs.model.double()
loss = theirs.loss_fn(theirs.model, torch.from_numpy(x.astype(np.float64)), torch.from_numpy(y))
loss.backward()
ours = workloads.find("digits-mlp")("numpy", 0)
exact = float64_gradients(ours.loss_fn, ours.model, ours.batches[0])
for mine, other in zip(exact.values(), theirs.model.parameters(), strict=True):
    assert mine.dtype == np.float64
    np.testing.assert_allclose(mine, other.grad.numpy().T, rtol=1e-9, atol=1e-14)
print("equal")
"""
    assert run_python("-c", code) == "equal\n"


def test_ops_are_observed_and_softmax_stays_float32(data, backends):
    ops = data["ops"]
    assert ops["not_observed"] == {}
    assert ops["columns"] == backends
    for name in backends:
        assert set(ops["ops"]["linear"]["dtypes"][name]) == {"float16"}
        assert set(ops["ops"]["cross_entropy"]["dtypes"][name]) == {"float32"}
    for op, row in ops["ops"].items():
        dtypes = {frozenset(cell) for cell in row["dtypes"].values() if cell}
        assert row["differs"] == (len(dtypes) > 1), op


def test_paddle_on_a_cpu_says_that_its_own_amp_is_off(data, backends):
    if "paddle" not in backends:
        pytest.skip("paddle is not installed")
    run = runs(data, "native")["paddle"]
    if run["device"] != "cpu":
        pytest.skip("paddle has a GPU here")
    assert run["execution"] == "none"
    assert any("switches its AMP off on a CPU" in note for note in run["notes"])
    assert run["loss"] == pytest.approx(data["reference"]["loss"], rel=1e-3)


def test_lists_differ_where_the_op_table_says(data):
    softmax = data["lists"]["ops"]["softmax"]
    assert softmax["the recipe"] == softmax["torch"] == "deny"
    assert softmax["tensorflow"] == "promote"


# -- failures are rows


def test_a_framework_that_is_missing_is_a_row(monkeypatch):
    monkeypatch.setattr(
        registry, "backends", lambda: {"numpy": "installed", "torch": "not installed"}
    )
    comparison = compare(RECIPE, ["torch", "numpy"], steps=2)
    torch, numpy = comparison.runs
    assert torch.error == "torch is not installed.\nHint: pip install 'ampbridge[torch]'"
    assert numpy.error is None
    said = "torch failed: torch is not installed. Hint: pip install 'ampbridge[torch]'"
    assert said in str(comparison).splitlines()
    assert comparison.to_dict()["runs"][0]["loss"] == []


def test_a_process_that_crashes_is_a_row(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'free(): invalid pointer' >&2\nkill -6 $$\n")
    python.chmod(python.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setattr(sys, "executable", str(python))
    (run,) = compare(RECIPE, ["numpy"], steps=2).runs
    assert run.error == (
        "The process ended with -6: free(): invalid pointer\n"
        "Hint: ampbridge doctor --framework numpy"
    )


ONLY_ONE = """
from ampbridge.workloads import Workload
def build(backend, seed):
    if backend == "{known}":
        import numpy as np
        from ampbridge_numpy import nn, optim
        model = nn.Linear(4, 1)
        model.bias[...] = 0.0
        model.weight[...] = np.random.default_rng(seed).uniform(1, 2, (4, 1))
        batch = (np.ones((3, 4), np.float32),)
        sgd = optim.SGD(model.parameters(), 0.1)
        return Workload(model, sgd, lambda m, x: (m(x) ** 2).mean(), [batch])
    raise ValueError(f"no model for {{backend}}")
"""


def test_a_workload_of_ones_own_that_a_backend_does_not_know(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(ONLY_ONE.format(known="numpy"))
    comparison = compare(RECIPE, ["numpy", "paddle"], workload=str(file), steps=3)
    numpy, paddle = comparison.runs
    assert numpy.error is None
    assert numpy.accuracy is None
    assert comparison.errors["numpy"].total < 2.0**-9
    if registry.backends()["paddle"] != "not installed":
        assert paddle.error.startswith("ValueError: no model for paddle\nHint: it was raised in ")
        assert paddle.error.endswith("own.py, line 13.")


def test_weights_that_do_not_come_from_the_seed_are_told_of(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(ONLY_ONE.format(known="numpy").replace("default_rng(seed)", "default_rng()"))
    remarks = compare(RECIPE, ["numpy"], workload=str(file), steps=1).remarks()
    assert any(r.startswith("Not all runs start from the same weights") for r in remarks)
    file.write_text(ONLY_ONE.format(known="numpy"))
    assert compare(RECIPE, ["numpy"], workload=str(file), steps=1).remarks() == []


def test_without_a_reference_gradients_are_held_against_float32(tmp_path, monkeypatch):
    """A workload that the reference's process cannot build, in a process that can."""
    file = tmp_path / "own.py"
    text = ONLY_ONE.format(known="numpy").replace(
        'if backend == "numpy":',
        "import os\n    if os.environ.get('HIDE') != 'yes' or not _first():",
    )
    text += f"""
def _first():
    from pathlib import Path
    mark = Path({str(tmp_path / "mark")!r})
    if mark.exists():
        return False
    mark.touch()
    return True
"""
    file.write_text(text)
    monkeypatch.setenv("HIDE", "yes")
    monkeypatch.setattr("ampbridge_compare.processes.AT_ONCE", 1)  # the reference comes first
    comparison = compare(RECIPE, ["numpy"], workload=str(file), steps=3)
    assert comparison.exact is None
    (parameter, *_) = comparison.errors["numpy"].parameters
    assert parameter.against == "its own float32"
    assert any(line.startswith("There is no float64 reference: ") for line in comparison.remarks())


# -- what stays in one process


def test_the_parent_loads_no_framework():
    code = (
        "import sys, ampbridge as amp\n"
        "from ampbridge_compare import compare\n"
        "compare(amp.Recipe(), ['numpy'], steps=1, native=True)\n"
        "print(sorted({'torch', 'tensorflow', 'paddle', 'keras', 'autograd'} & set(sys.modules)))"
    )
    assert run_python("-c", code) == "[]\n"


def test_importing_the_command_line_loads_neither_lens_nor_figures():
    code = (
        "import sys, ampbridge.cli\n"
        "print([m for m in ('ampbridge_lens', 'ampbridge_compare', 'matplotlib', 'rich', 'sklearn')"
        " if m in sys.modules])"
    )
    assert run_python("-c", code) == "[]\n"


def test_an_interrupt_ends_the_processes(tmp_path):
    """A process that sleeps is gone soon after its parent was interrupted."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/pids\nexec sleep 600\n")
    python.chmod(python.stat().st_mode | stat.S_IEXEC)
    # A shell's job in the background ignores interrupts, and so does what it starts.
    code = (
        "import signal, sys, ampbridge as amp\n"
        "from ampbridge_compare import compare\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"sys.executable = {str(python)!r}\n"
        "compare(amp.Recipe(), ['numpy'], steps=1)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    pids = tmp_path / "pids"
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    parent.send_signal(2)
    assert parent.wait() != 0
    for pid in map(int, pids.read_text().split()):
        wait_until(lambda pid=pid: not _alive(pid))


def test_a_process_that_starts_during_an_interrupt_ends_too():
    started = processes._Started()
    started.end()
    late = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    started.add(late)
    assert late.wait() != 0


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# -- parts


def test_a_run_goes_to_its_folder_and_back(tmp_path):
    done = compare(RECIPE, ["numpy"], steps=2).runs[0]
    done.save(tmp_path)
    back = Run.load(tmp_path)
    for name in ("gradients", "float32_gradients"):
        mine, theirs = getattr(done, name), getattr(back, name)
        assert mine.keys() == theirs.keys()
        for key in mine:
            np.testing.assert_array_equal(mine[key], theirs[key])
    assert (back.steps, back.weights, back.versions) == (done.steps, done.weights, done.versions)
    assert back.versions["float32 products"] == "float32"


def matrix(**dtypes):
    job = Job("x", "ampbridge", "digits-mlp", {}, 1, 0)
    made = [
        Run(
            name, "x", job.kind, census=tuple({"op": o, "dtype": d, "calls": n} for o, d, n in rows)
        )
        for name, rows in dtypes.items()
    ]
    return OpMatrix.of(made)


def test_an_op_differs_by_its_dtypes_and_not_by_its_calls():
    found = matrix(
        a=[("softmax", "float32", 1), ("mm", "float16", 2), ("exp", "float32", 1)],
        b=[("softmax", "float16", 1), ("mm", "float16", 9)],
        c=[("mm", "float16", 1), ("mm", "float32", 1)],
    )
    assert found.differences == ("softmax", "mm")
    assert not found.differs("exp")
    assert shown(found.cells["mm"]["c"]) == "float16 ×1, float32 ×1"
    assert shown(found.cells["exp"]["b"]) == "–"


def test_lists_have_the_recipes_own_changes():
    policy = amp.Policy("O1", lists="paddle", allow=["softmax"])
    lists = OpLists.of(policy, ["paddle", "numpy"], ["softmax"])
    assert lists.columns == ("the recipe", "paddle")
    assert lists.rules == {"softmax": {"the recipe": "allow", "paddle": "deny"}}


def test_float32_has_no_lists():
    assert OpLists.of(amp.Policy("O0"), ["torch"], []).columns == ()
