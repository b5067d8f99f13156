"""Programs in the manner of public trainers, each read as it was by hand, in ``truth.toml``.

As ``python scripts/score_port.py`` scores them, which starts the command anew for each.
"""

import importlib.util
import sys
from pathlib import Path

import pytest

from ampbridge.cli import main

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("score_port", ROOT / "scripts/score_port.py")
score_port = sys.modules["score_port"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(score_port)

PROGRAMS = [truth.parent for truth in sorted(score_port.PROGRAMS.glob("*/truth.toml"))]
LETTERS = {
    "deepspeed_trainer_auto": "Q",
    "ernie_pretraining_arguments": "Q",
    "keras_accumulator": "Q",
    "keras_asr_train_step": "Q",
    "luke_trainer": "Q",
    "ppo_agent": "Q",
    "text_to_image_no_sync": "Q",
    "yolo_engine_defaults": "U",
}
"""Of those that are not right at once: right after one question, or told as unknown."""


@pytest.mark.parametrize("folder", PROGRAMS, ids=lambda folder: folder.name)
def test_a_program_is_read_as_it_was_by_hand(folder, tmp_path, capsys, monkeypatch):
    class Porter(score_port.Porter):
        def run(self, arguments):
            return main(["port", *arguments]), *capsys.readouterr()

    clone, truth = score_port.cloned(folder, tmp_path), score_port.Truth.load(folder / "truth.toml")
    monkeypatch.chdir(clone)
    letter, differs = score_port.judged(Porter(ROOT, clone, truth), truth)
    assert letter == LETTERS.get(folder.name, "R"), differs


def test_there_are_as_many_as_are_told_of():
    assert len(PROGRAMS) == 72
