"""Scripts written for CUDA are run unchanged, and what the report says of them is what they do.

Waits are reckoned by hand from the scripts, scales by torch's own scaler.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

import pytest
import torch
from processes import QUIET, check_installed
from torch import nn

from ampbridge.errors import UnsupportedError
from ampbridge_rehearse import limits
from ampbridge_rehearse.lines import Line
from ampbridge_rehearse.report import Report
from ampbridge_rehearse.watching import Product, Step, Wait, Watch, Window

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
# torchvision's wheel may be one that cannot be loaded beside this torch; transformers imports it.
WITH_TORCHVISION = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests")!r})
from ampbridge_rehearse import virtual_cuda
virtual_cuda.install()
import torchvision_ops
declared = torchvision_ops.declare()
from ampbridge_rehearse.command import main
sys.exit(main())
"""


class Rehearsed(NamedTuple):
    exit_code: int
    output: str
    errors: str

    @property
    def report(self) -> str:
        return "Rehearsal of " + self.output.rpartition("\nRehearsal of ")[2]

    def table(self, header: str, below: str = "") -> list[list[str]]:
        """The rows of the first table after ``below`` whose header begins so, cell by cell."""
        lines = iter(self.report[self.report.index(below) :].splitlines())
        for line in lines:
            if line.startswith(header):
                break
        widths = [len(dashes) for dashes in next(lines).split("  ")]
        rows = []
        for line in lines:
            if not line or line.startswith(("...", "Each", "The", "up to")):
                break
            cells, at = [], 0
            for width in widths:
                cells.append(line[at : at + width].strip())
                at += width + 2
            rows.append(cells)
        return rows

    def waits(self, optimizer: str) -> dict[str, tuple[str, str, str]]:
        """By the source line: kind, count up to the first step, count up to a later one."""
        rows = self.table("waits", f"up to a step of {optimizer}")
        return {line.split("  ")[-1]: (kind, first, later) for kind, first, later, line in rows}


def rehearse(*arguments: object, command: tuple[str, ...] = (), **environment: str) -> Rehearsed:
    done = subprocess.run(
        [sys.executable, *(command or ("-m", "ampbridge_rehearse")), *map(str, arguments)],
        env={**os.environ, **QUIET, "HF_HUB_OFFLINE": "1", **environment},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return Rehearsed(done.returncode, done.stdout, done.stderr)


# -- scripts in the manner of public ones


@cache
def recipe() -> Rehearsed:
    return rehearse(SCRIPTS / "amp_recipe.py", "--steps", 100)


@cache
def gan() -> Rehearsed:
    return rehearse(SCRIPTS / "gan.py", "--steps", 6)


@cache
def fine_tuning(*arguments: str) -> Rehearsed:
    check_installed("transformers")
    command = ("-c", WITH_TORCHVISION)
    return rehearse(SCRIPTS / "fine_tune.py", "--steps", 4, "--", *arguments, command=command)


def test_the_recipe_runs_to_its_end() -> None:
    done = recipe()
    assert done.exit_code == 0, done.errors
    assert "Mixed precision:" in done.output
    assert "8 optimizer steps; the script ended" in done.report
    assert done.table("optimizer") == [
        ["opt", "1-4", "none", "applied", "finite"],
        ["amp_opt", "1-4", "2^16", "applied", "finite"],
    ]


def test_the_waits_of_the_recipe() -> None:
    done = recipe()
    # three layers of weight and bias, moved one by one
    moved = next(key for key in done.waits("opt") if key.startswith("return torch.nn.Sequential"))
    assert done.waits("opt") == {
        moved: ("write", "6", "0"),
        "torch.cuda.synchronize()": ("synchronize", "1", "0"),
    }
    assert done.waits("amp_opt")["scaler.step(amp_opt)"] == ("read", "1", "1")
    assert "Each step after the first: 1 read, 0 write, 0 synchronize." in done.report
    assert "after the last step" in done.report  # end_timer_and_print, and the checkpoint


def test_the_kernels_of_the_recipe() -> None:
    """Three linear layers: one product forward, two backward, but the first needs none for its input."""
    done = recipe()
    counts = {(op, dtype): int(calls) for op, dtype, calls, _ in done.table("op", "Kernels")}
    assert counts["addmm", "float16"] == 3 * 4
    assert counts["addmm", "float32"] == 3 * 3  # without the first step
    assert counts["mm", "float16"] == 5 * 4
    products = done.table("op", "Matrix products")
    assert [row[:3] for row in products] == [["mm", "backward", "15"], ["addmm", "forward", "9"]]
    assert products[1][3].endswith("output = net(input)")


def test_a_gan_has_two_optimizers_and_one_scaler() -> None:
    done = gan()
    assert done.exit_code == 0, done.errors
    assert done.table("optimizer") == [
        ["optimizerD", "1-3", "2^16", "applied", "finite"],
        ["optimizerG", "1-3", "2^16", "applied", "finite"],
    ]
    of_d, of_g = done.waits("optimizerD"), done.waits("optimizerG")
    assert of_d["D_x = output.sigmoid().mean().item()"] == ("read", "1", "1")
    assert of_d["D_G_z1 = output.sigmoid().mean().item()"] == ("read", "1", "1")
    assert of_d["real = data[0].to(device)"] == ("write", "1", "1")
    assert of_d["scaler.step(optimizerD)"] == ("read", "1", "1")
    assert of_g == {
        "D_G_z2 = output.sigmoid().mean().item()": ("read", "1", "1"),
        "scaler.step(optimizerG)": ("read", "1", "1"),
    }


def test_fine_tuning_from_a_scale_that_overflows() -> None:
    done = fine_tuning("--init_scale", "1e38")
    assert done.exit_code == 0, done.errors
    expected = list(scales_of_torch(1e38, overflowing=4))
    rows = done.table("optimizer")
    assert [(row[2], row[3]) for row in rows] == [(f"{s:g}", "skipped") for s in expected[:-1]]
    assert all(re.fullmatch(r"inf or NaN in (\d+) of \1", row[4]) for row in rows)
    assert f"The loss scale is then {expected[-1]:g}." in done.report
    own = {key: told for key, told in done.waits("optimizer").items() if "transformers" not in key}
    logged = next(key for key in own if key.startswith("total_loss += loss.item()"))
    # the loss of a step is read after it, up to the next
    assert own == {"scaler.step(optimizer)": ("read", "1", "1"), logged: ("read", "0", "1")}


def test_a_fused_optimizer_does_not_wait() -> None:
    done = fine_tuning("--fused")
    assert done.table("optimizer") == [["optimizer", "1-4", "2^16", "applied", "finite"]]
    assert "scaler.step(optimizer)" not in done.waits("optimizer")


def scales_of_torch(scale: float, overflowing: int) -> Iterator[float]:
    """The scale before each step that overflows, and after the last, by torch's scaler on a CPU."""
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    for _ in range(overflowing):
        yield scaler.get_scale()
        scaler.scale(weight.sum() * float("inf")).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    yield scaler.get_scale()


def test_reports_fit_80_columns() -> None:
    for done in (recipe(), gan(), fine_tuning("--init_scale", "1e38")):
        assert max(map(len, done.report.splitlines())) <= 80


def test_the_report_in_the_documents_is_what_is_printed() -> None:
    page = (ROOT / "docs" / "rehearsal.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- report of gan.py -->\n")[2].partition("<!-- end of report -->")[0]
    assert without_version(dedent(shown)) == without_version(gan().report)


def without_version(report: str) -> str:
    return re.sub(r"torch \S+", "torch", report).strip()


# -- how a script is run

FAILING = """
import os, sys
import beside
import torch

assert __name__ == "__main__" and sys.argv[1:] == ["--lr", "0.5"], sys.argv
assert os.path.samefile(sys.argv[0], __file__)
weight = torch.nn.Parameter(torch.ones(2, device="cuda"))
torch.optim.SGD([weight], lr=0.5).step()  # without a gradient
optimizer = torch.optim.SGD([weight], lr=0.5)
(weight * float("nan")).sum().backward()
try:
    optimizer.step()
except Exception:
    sys.exit("a step that is not the last ends nothing")
torch.ones(2, device="cuda:1")
"""


def test_a_script_that_fails_has_its_traceback_and_the_report(tmp_path: Path) -> None:
    (tmp_path / "beside.py").touch()
    script = tmp_path / "train.py"
    script.write_text(FAILING)
    done = rehearse(script, "--steps", 3, "--", "--lr", "0.5")
    assert done.exit_code == 1
    assert re.match(r'Traceback .*\n  File ".*train.py", line \d+, in <module>\n', done.errors)
    assert "invalid device ordinal" in done.errors
    assert "Hint: the virtual CUDA device is cuda:0, and there is no other" in done.errors
    assert "2 optimizer steps; FAILED with" in done.report
    assert done.table("optimizer") == [
        ["SGD", "1", "none", "applied", "none"],
        ["optimizer", "1", "none", "applied", "inf or NaN in 1 of 1"],
    ]


def test_what_cannot_be_rehearsed_is_said_in_one_message(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    for done, said in (
        (rehearse(tmp_path / "other.py"), "There is no script"),
        (rehearse(script, WORLD_SIZE="2"), "WORLD_SIZE is 2"),
        (rehearse(script, CXX=str(tmp_path / "c++")), "there is no C++ compiler"),
    ):
        assert done.exit_code == 1
        assert not done.output
        assert "Traceback" not in done.errors
        assert said in done.errors
        assert done.errors.splitlines()[-1].startswith("Hint: ")


# -- what is replaced or refused


def test_compiled_functions_run_by_another_backend(caplog: pytest.LogCaptureFixture) -> None:
    with limits.kept() as replaced:

        @torch.compile(mode="max-autotune")
        def double(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        assert torch.equal(double(torch.ones(3, device="cuda")).cpu(), torch.full((3,), 2.0))
        torch.compile(nn.Linear(2, 2), backend="eager")
    assert len(replaced) == 1
    assert "aot_eager" in replaced[0]
    assert "ignoring extra kwargs" not in caplog.text  # Inductor's, which it would warn of


@pytest.mark.parametrize("backend", ["nccl", None, "cpu:gloo,cuda:nccl"])
def test_nccl_is_refused(backend: str | None) -> None:
    with limits.kept(), pytest.raises(UnsupportedError, match=r"(?s)NCCL.*Hint: "):
        torch.distributed.init_process_group(backend)


def test_graphs_are_refused_and_what_was_replaced_comes_back() -> None:
    before = torch.compile, torch.distributed.init_process_group
    with limits.kept(), pytest.raises(UnsupportedError, match=r"(?s)CUDA graphs.*Hint: "):
        torch.cuda.CUDAGraph()
    assert (torch.compile, torch.distributed.init_process_group) == before


def test_kernels_of_others_are_hinted_at() -> None:
    missing = ModuleNotFoundError("No module named 'flash_attn'", name="flash_attn.ops")
    assert "flash_attn has CUDA kernels of its own" in str(limits.hint(missing))
    assert limits.hint(ModuleNotFoundError("no numpy", name="numpy")) is None
    assert limits.hint(ValueError("lr")) is None


def test_a_number_that_16_bits_do_not_hold_is_hinted_at() -> None:
    low = torch.ones(2, device="cuda", dtype=torch.float16)
    with pytest.raises(RuntimeError) as raised:
        low.masked_fill(low > 0, -1e9)
    assert "torch.finfo(x.dtype).min" in str(limits.hint(raised.value))
    assert torch.equal(low.masked_fill(low > 0, torch.finfo(low.dtype).min), -65504 * low)


def test_a_kernel_that_cuda_lacks_in_16_bits_is_hinted_at() -> None:
    graph, x = torch.eye(2, device="cuda").to_sparse(), torch.ones(2, 2, device="cuda")
    with torch.autocast("cuda"):
        with pytest.raises(NotImplementedError) as raised:
            graph @ x
        assert "enabled=False" in str(limits.hint(raised.value))
        with torch.autocast("cuda", enabled=False):
            assert torch.equal(graph @ x, x)


# -- what is seen


class Outer(torch.optim.Optimizer):
    """An optimizer around another, as lookahead and its like are."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups[0]["params"], {})
        self.inner = inner

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()


def test_an_optimizer_within_another_is_one_step() -> None:
    weight = nn.Parameter(torch.ones(1, device="cuda"))
    watch = Watch(".", 10)
    with watch.open():
        optimizer = Outer(torch.optim.SGD([weight], lr=0.1))
        weight.sum().backward()
        optimizer.step()
    assert [step.optimizer for step in watch.steps] == ["optimizer"]


def test_looking_is_not_counted_and_obeys_no_ban_on_waiting() -> None:
    weight = nn.Parameter(torch.ones(1, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cuda")
    watch = Watch(".", 10)
    torch.cuda.set_sync_debug_mode("error")
    try:
        with watch.open():
            scaler.scale(weight.sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        assert torch.cuda.get_sync_debug_mode() == 2
    finally:
        torch.cuda.set_sync_debug_mode("default")
    (step,) = watch.steps
    assert (step.scale, step.applied, step.bad, step.gradients) == (2.0**16, True, 0, 1)
    assert not step.window.waits
    assert not watch.window.waits


def test_a_wait_of_the_backward_pass_is_at_the_line_that_called_it() -> None:
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            gradient.sum().item()
            return gradient

    x = torch.ones(2, device="cuda", requires_grad=True)
    watch = Watch(str(Path(__file__).parent), 10)
    with watch.open():
        mask = x.detach() > 0
        x[mask].sum().backward()
        Reads.apply(x).sum().backward()
    lines = {(wait.kind, wait.line.text): n for wait, n in watch.window.waits.items()}
    assert lines == {
        ("read", "x[mask].sum().backward()"): 2,  # a mask is turned into indices, both ways
        ("read", "gradient.sum().item()"): 1,
    }
    phases = {kernel.phase for kernel in watch.window.kernels}
    assert phases == {"forward", "backward"}


def test_a_long_report_is_cut() -> None:
    windows = [Window() for _ in range(40)]
    line = Line("a_rather_long_folder/of_the_script/train.py", 12345, "x" * 90)
    for window in windows:
        window.waits[Wait("synchronize", line)] += 10**6
        window.products[Product("convolution_backward", "backward", line)] += 1
    steps = tuple(Step("optimizer", 1.5**n, True, 0, 3, w) for n, w in enumerate(windows))
    text = str(
        Report("train.py" * 9, "the script ended", steps, Window(), 3.0, 2**34, ("A " * 90,))
    )
    assert max(map(len, text.splitlines())) <= 80
    assert "... and 20 more" in text
    assert "at most 16 GiB" in text
    assert "40 optimizer steps" in text
