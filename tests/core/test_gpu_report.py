"""scripts/gpu_report.py: what it writes of parts that are done, that fail, and that cannot be done."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import gpu_report  # noqa: E402
from gpu_report import Device, Failed, Part, Run  # noqa: E402

GPU = Device("2.13.0", "A GPU", ["compute capability 9.0"])
NONE = Device("3.3.1", missing="paddle 3.3.1: it sees no GPU")


def fails(framework, run):
    raise Failed("Exit status 3.\n")


def breaks(framework, run):
    raise KeyError("a mistake of ours")


def works(framework, run):
    return f"{framework} works\n"


def written(monkeypatch, tmp_path, devices, parts, *options):
    """The exit status and the report."""
    monkeypatch.setattr(gpu_report, "device_of", lambda name, run: devices[name])
    monkeypatch.setattr(gpu_report, "PARTS", [Part(f.__name__, f.__name__, f) for f in parts])
    file = tmp_path / "report.md"
    monkeypatch.setattr(sys, "argv", ["gpu_report.py", "--output", str(file), *options])
    status = gpu_report.main()
    return status, file.read_text() if file.exists() else ""


def test_parts_go_on_after_one_that_fails(monkeypatch, tmp_path):
    devices = {"torch": GPU, "paddle": NONE}
    status, report = written(monkeypatch, tmp_path, devices, [fails, breaks, works])
    assert status == 1
    assert "| torch: fails | FAILED |\n| paddle: fails | skipped |\n" in report
    assert "| torch: breaks | FAILED |" in report
    assert "| torch: works | done |" in report
    assert "## torch: fails\n\n**Failed.** Exit status 3.\n" in report
    assert "## torch: breaks\n\n**Failed.** KeyError: 'a mistake of ours'\n" in report
    assert "## torch: works\n\ntorch works\n" in report
    assert "## paddle: works\n\nSkipped: paddle 3.3.1: it sees no GPU.\n" in report


def test_its_first_lines_say_what_it_was(monkeypatch, tmp_path):
    devices = {"torch": GPU, "paddle": NONE}
    status, report = written(monkeypatch, tmp_path, devices, [works])
    assert status == 0
    assert report.splitlines()[2] == "**A real GPU**: A GPU."
    assert "\n| torch | 2.13.0; A GPU; compute capability 9.0 |\n" in report
    assert "\n| paddle | paddle 3.3.1: it sees no GPU |\n" in report
    _, report = written(monkeypatch, tmp_path, devices, [works], "--virtual")
    assert report.splitlines()[2].startswith("**No GPU: virtual devices** (A GPU)")


def test_without_a_gpu_there_is_no_report(monkeypatch, tmp_path, capsys):
    devices = {"torch": NONE, "paddle": NONE}
    assert written(monkeypatch, tmp_path, devices, [works]) == (2, "")
    assert "it sees no GPU\nHint: " in capsys.readouterr().err


class Pytest(Run):
    """Writes what pytest does of a test that fails and of one that is skipped."""

    def python(self, framework, *command):
        results = command[command.index("--junitxml") + 1]
        results.write_text(
            '<testsuites><testsuite><testcase classname="tests.torch.test_a" name="test_b[c]">'
            '<failure message="assert"/></testcase><testcase classname="tests.torch.test_a"'
            ' name="test_d"><skipped type="pytest.skip" message="of the CPU">x</skipped></testcase>'
            "</testsuite></testsuites>"
        )
        return subprocess.CompletedProcess(command, 1, "")


def test_tests_that_fail_are_named_and_fail_the_part(tmp_path):
    with pytest.raises(Failed) as failed:
        gpu_report.tests("torch", Pytest(virtual=False, quick=False, folder=tmp_path))
    text = str(failed.value)
    assert text.startswith("`pytest tests/torch`: 1 failed, 1 skipped.\n")
    assert "| 1 | of the CPU | `test_a.py::test_d` |" in text
    assert "- `test_a.py::test_b`\n" in text


def test_a_script_that_fails_is_told_with_its_last_words(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('about to fail')\nraise SystemExit(3)")
    run = Run(virtual=False, quick=False, folder=tmp_path)
    with pytest.raises(Failed, match=r"Exit status 3.*\n\n    about to fail"):
        run.said("torch", script)
