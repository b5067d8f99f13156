"""What a GPU says of ampbridge, as one report in Markdown: tests, bits, waits, times.

    python scripts/gpu_report.py                      on the GPU that is there
    python scripts/gpu_report.py --virtual --quick    on the virtual devices, to see how it reads

It runs in the environment that is active, with the frameworks that are in it: builds for CUDA, which
`make test` does not install. Where a framework sees no GPU its parts say so. The others go on after a
part that fails; the exit status is 1 then. docs/gpu.md tells what each part holds.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "paddle_simplenet"
PATHS = [str(ROOT), str(ROOT / "backends"), str(ROOT / "tools")]
sys.path[:0] = [*PATHS, str(ROOT / "bench"), str(EXAMPLE)]

import page  # noqa: E402
import simplenet  # noqa: E402
import skipped_tests  # noqa: E402

from ampbridge.policies.hardware import cpu_model  # noqa: E402

FRAMEWORKS = ("torch", "paddle")

# What runs a script, or -m and a module, on a framework's virtual device.
ON_VIRTUAL = {
    "torch": ("-m", "ampbridge_rehearse.virtual_cuda"),
    "paddle": ("tests/virtual_paddle/on_the_device.py",),
}

ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])]),
    "PYTHONIOENCODING": "utf-8",
    "OMP_NUM_THREADS": "1",  # what computes on the CPU is small, and sums in one order
    "NVIDIA_TF32_OVERRIDE": "0",  # no library of NVIDIA's runs float32 products in TF32
}


class Failed(Exception):
    """A part failed; the text is what the report says of it."""


class Run(NamedTuple):
    """What was asked for, and a folder for what the parts write."""

    virtual: bool
    quick: bool
    folder: Path

    def python(self, framework: str | None, *command: object) -> subprocess.CompletedProcess[str]:
        """A script, or ``-m`` and a module, with ``framework`` on its device; None: as it is."""
        runner = ON_VIRTUAL[framework] if self.virtual and framework else ()
        words = [*runner, *map(str, command)]
        print("+ python", shlex.join(words), flush=True)
        return subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            check=False,
        )

    def said(self, framework: str | None, *command: object) -> str:
        """What it printed.

        Raises:
            Failed: if its exit status is not 0.
        """
        done = self.python(framework, *command)
        if done.returncode:
            raise Failed(end_of(done))
        return done.stdout

    def file(self, name: str) -> Path:
        return self.folder / name


def end_of(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stdout.rstrip().splitlines()[-30:]
    text = "\n".join(f"    {line}" for line in lines)
    return f"Exit status {done.returncode}. The last that was said:\n\n{text}\n"


# -- the devices


class Device(NamedTuple):
    """What a framework computes on; ``missing`` says why it is no GPU."""

    version: str = ""
    model: str = ""
    facts: Sequence[str] = ()
    missing: str = ""


def device_of(framework: str, run: Run) -> Device:
    """As ``ampbridge doctor`` finds it."""
    if importlib.util.find_spec(framework) is None:
        return Device(missing=f"{framework} is not installed")
    done = run.python(framework, "-m", "ampbridge", "doctor", "--framework", framework, "--json")
    try:
        [found] = json.loads(done.stdout.splitlines()[-1])["frameworks"]
    except (IndexError, KeyError, ValueError):
        return Device(missing=f"{framework} was not to be asked for its devices:\n\n{end_of(done)}")
    gpu = next((each for each in found["devices"] if each["kind"] != "cpu"), None)
    if gpu is None:
        why = found["problem"] or "it sees no GPU"
        return Device(found["version"], missing=f"{framework} {found['version']}: {why}")
    return Device(found["version"], gpu["model"], list(facts(gpu)))


def facts(gpu: Mapping[str, Any]) -> Iterator[str]:
    if gpu["compute_capability"]:
        yield "compute capability " + ".".join(map(str, gpu["compute_capability"]))
    for name, value in gpu["settings"].items():
        yield f"{name}: {value}"
    for dtype, failure in gpu["failures"].items():
        yield f"{dtype} fails: {failure}"


def driver() -> str:
    """NVIDIA's, and its libraries in this environment, which choose the kernels."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    told = "no nvidia-smi"
    if shutil.which(command[0]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        told = "; ".join((done.stdout or done.stderr).strip().splitlines())
    libraries = sorted(
        {
            f"{name} {each.version}"
            for each in importlib.metadata.distributions()
            if (name := each.metadata["Name"] or "").startswith("nvidia-")
        }
    )
    return "; ".join([told, *libraries])


# -- the parts


def tests(framework: str, run: Run) -> str:
    """The framework's folder: counts, the tests that failed, and those that do not apply."""
    results = run.file(f"{framework}.xml")
    # Paddle's folder asks for CUDA by name; on the virtual device there are tests of its own.
    folder = "virtual_paddle" if run.virtual and framework == "paddle" else framework
    path = f"tests/{folder}"
    if run.quick:
        path += "/test_host_reads.py" if folder == "virtual_paddle" else "/test_regions.py"
    done = run.python(framework, "-m", "pytest", "-q", "--junitxml", results, path)
    if not results.exists():
        raise Failed(end_of(done))
    found = list(skipped_tests.cases(results))
    told = f"`pytest {path}`: {skipped_tests.counts(found)}.\n"
    if table := skipped_tests.table(found):
        told += f"\nTests that do not apply here:\n\n{table}"
    if done.returncode:
        names = Counter(case.name for case in found if case.outcome == "failed")
        lines = [
            f"- `{name}`" + (f", {count} times" if count > 1 else "")
            for name, count in names.items()
        ]
        raise Failed("\n".join([told, f"Exit status {done.returncode}. Failed:\n", *lines]) + "\n")
    return told


QUICK_OPS = {
    "torch": ("dot", "conv2d", "layer_norm", "sin"),
    "paddle": ("matmul", "conv2d", "softmax", "poisson_nll_loss"),
}


def bits(framework: str, run: Run) -> str:
    """The simulation on the CPU beside the framework's own autocast on the device, op by op."""
    table = run.file(f"bits-{framework}.md")
    options: list[object] = ["--framework", framework, "--by-op", "--markdown", table]
    options += [] if run.virtual else ["--gpu"]
    options += ["--ops", *QUICK_OPS[framework]] if run.quick else []
    run.said(None, "bench/simulated_ops.py", *options)  # it takes the virtual device by itself
    return table.read_text("utf-8")


def waits(framework: str, run: Run) -> str:
    """How often the host waits for the device in a step."""
    told = run.said(framework, "tests/virtual_cuda/waiting.py", "--gpu")
    table = [line for line in told.splitlines() if line.startswith("|")]
    return "As `torch.cuda.set_sync_debug_mode` warns, in a step:\n\n" + "\n".join(table) + "\n"


def simplenet_table(framework: str, run: Run) -> str:
    """Paddle's guide: float32, O1, O2, and O1 accumulated, in float16."""
    file = run.file(f"simplenet-{framework}.json")
    small = run.virtual or run.quick
    size = simplenet.SMALL if small else simplenet.THE_GUIDES
    options = [] if small else ["--full"]
    script = EXAMPLE.relative_to(ROOT) / "simplenet.py"
    run.said(framework, script, "--backend", framework, "--json", file, *options)
    outcomes = [simplenet.Outcome(**row) for row in json.loads(file.read_text("utf-8"))]
    rows = [
        [
            each.name,
            f"{1000 * each.seconds / (size.epochs * size.batches):.3f}",
            f"{outcomes[0].seconds / each.seconds:.2f}",
            f"{each.loss:.8f}",
            str(each.skipped),
        ]
        for each in outcomes
    ]
    columns = ["float16", "ms a step", "speed-up", "last loss", "skipped steps"]
    return f"{size}.\n\n{page.table(columns, rows)}"


def overhead(framework: str, run: Run) -> str:
    """`train_step` beside a loop by hand."""
    table = run.file(f"overhead-{framework}.md")
    options: list[object] = ["--framework", framework, "--markdown", table]
    options += ["--workload", "tiny", "--rounds", 8] if run.quick or run.virtual else []
    run.said(framework, "bench/overhead.py", *options)
    return table.read_text("utf-8")


class Part(NamedTuple):
    key: str
    title: str
    tell: Callable[[str, Run], str]
    frameworks: Sequence[str] = FRAMEWORKS


PARTS = (
    Part("tests", "tests", tests),
    Part("bits", "the simulation beside the device, to the bit", bits),
    Part("waits", "waits of the host", waits, ("torch",)),
    Part("simplenet", "SimpleNet", simplenet_table),
    Part("overhead", "what a step costs beside a loop by hand", overhead),
)


class Told(NamedTuple):
    """A section: ``outcome`` is ``"done"``, ``"skipped"`` or ``"FAILED"``."""

    title: str
    outcome: str
    text: str


def told(part: Part, framework: str, device: Device, run: Run) -> Told:
    title = f"{framework}: {part.title}"
    if device.missing:
        return Told(title, "skipped", f"Skipped: {device.missing}.\n")
    try:
        return Told(title, "done", part.tell(framework, run))
    except Failed as failure:
        return Told(title, "FAILED", f"**Failed.** {failure}")
    except Exception as error:  # a part of ours that breaks ends no other
        return Told(title, "FAILED", f"**Failed.** {type(error).__name__}: {error}\n")


# -- the report


def head(devices: Mapping[str, Device], run: Run) -> str:
    there = {name: device for name, device in devices.items() if not device.missing}
    models = "; ".join(sorted({device.model for device in there.values()}))
    if run.virtual:
        what = (
            f"**No GPU: virtual devices** ({models}), whose memory and arithmetic are the CPU's. "
            "Dtypes, values and waits are a GPU's, last bits and times are not."
        )
    else:
        what = f"**A real GPU**: {models}."
    rows = [[name, described(device)] for name, device in devices.items()]
    rows += [
        ["NVIDIA's driver and libraries", driver()],
        ["machine", f"{cpu_model()}, {os.cpu_count()} cores, {platform.platform()}"],
        ["Python", f"{platform.python_version()}, numpy {importlib.metadata.version('numpy')}"],
        ["ampbridge", f"commit {page.commit()}"],
        ["made", f"{page.today()}, load {page.load():.1f}"],
        ["by", f"`python scripts/gpu_report.py {shlex.join(sys.argv[1:])}`".replace(" `", "`")],
    ]
    return f"# What a GPU says of ampbridge\n\n{what}\n\n{page.table(['', ''], rows)}"


def described(device: Device) -> str:
    if device.missing:
        return " ".join(device.missing.split())
    return "; ".join([device.version, device.model, *device.facts])


def report(beginning: str, sections: Sequence[Told]) -> str:
    rows = [[section.title, section.outcome] for section in sections]
    parts = [f"## {section.title}\n\n{section.text.strip()}\n" for section in sections]
    return "\n".join([beginning, page.table(["part", ""], rows), *parts])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    keys = [part.key for part in PARTS]
    add = parser.add_argument
    add("--virtual", action="store_true", help="on the virtual devices, which the CPU plays")
    add("--quick", action="store_true", help="a few tests, ops and rounds of each part")
    add("--parts", nargs="+", choices=keys, default=keys, help="these alone")
    add("--frameworks", nargs="+", choices=FRAMEWORKS, default=FRAMEWORKS, help="these alone")
    add("--output", type=Path, default=Path("gpu-report.md"), help="default: %(default)s")
    return parser.parse_args()


def main() -> int:
    options = parse()
    sections: list[Told] = []
    with tempfile.TemporaryDirectory() as folder:
        run = Run(options.virtual, options.quick, Path(folder))
        devices = {name: device_of(name, run) for name in options.frameworks}
        if all(device.missing for device in devices.values()):
            for device in devices.values():
                print(device.missing, file=sys.stderr)
            print("Hint: python scripts/gpu_report.py --virtual --quick", file=sys.stderr)
            return 2
        beginning = head(devices, run)
        for part in PARTS:
            for framework in options.frameworks:
                if part.key in options.parts and framework in part.frameworks:
                    sections.append(told(part, framework, devices[framework], run))
                    # What is known stands there, whatever happens to the rest.
                    options.output.write_text(report(beginning, sections), encoding="utf-8")
    for section in sections:
        print(f"{section.outcome:<8} {section.title}")
    print(f"written: {options.output}")
    return 1 if any(section.outcome == "FAILED" for section in sections) else 0


if __name__ == "__main__":
    sys.exit(main())
