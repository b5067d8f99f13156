"""The fidelity report: what a target changes or loses, in few rows, and nothing of the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest

import ampbridge as amp
from ampbridge_port.fidelity_report import Report, fidelity

PADDLE = amp.Recipe(
    amp.Policy("O1", lists="paddle", allow=["add"], deny=["sum", "cross_entropy"]),
    amp.Scaling.like("paddle", init_scale=1024.0, growth_interval=500),
    accumulate=10,
)
O1, O2 = amp.Policy("O1", lists="paddle"), amp.Policy("O2", lists="paddle")


def rows(report: Report) -> dict[str, tuple[str, str]]:
    found = {row.key: (row.kind, row.message) for row in report.rows}
    assert len(found) == len(report.rows)  # no setting twice
    return found


@pytest.mark.parametrize("target", ("toml", "ampbridge"))
def test_ampbridge_and_toml_keep_everything(target: str) -> None:
    report = fidelity(PADDLE, target)
    assert report.rows == ()
    assert str(report) == f"Fidelity ({target}): every setting is kept"


def test_what_keras_has_itself_is_not_mentioned() -> None:
    keras = amp.Recipe(amp.Policy("O2", lists="tensorflow"), amp.Scaling.like("keras"), 4, 1.0)
    assert fidelity(keras, "tensorflow").rows == ()
    assert fidelity(amp.Recipe("O0", amp.Scaling()), "tensorflow").rows == ()
    graph = amp.Recipe(amp.Policy("O1", lists="tensorflow"))
    assert fidelity(graph, "tensorflow").rows == ()


LOST: dict[str, tuple[amp.Recipe, str, str]] = {
    "policy.lists": (amp.Recipe(O1), "changes", "layer by layer"),
    "policy.allow": (amp.Recipe(O1.replace(allow=["batch_norm", "add"])), "changes", "batch_norm:"),
    "policy.deny": (PADDLE, "changes", "sum: "),
    "policy.keep": (amp.Recipe(O1.replace(keep=["head"])), "changes", "your Keras layers"),
    "policy.masters": (
        amp.Recipe(O2.replace(masters=None)),
        "changes",
        "float32 variables",
    ),
    "policy.execution": (amp.Recipe(O2.replace(execution="simulated")), "lost", "not simulated"),
    "step.accumulate": (
        amp.Recipe(O2, accumulate=3, on_overflow="drop_microbatch"),
        "changes",
        "3 times the steps; each loss is scaled",
    ),
    "scaler.at_min_scale": (
        amp.Recipe(O2, amp.Scaling.like("deepspeed")),
        "lost",
        "training goes on",
    ),
    "scaler.warn_after_skips": (
        amp.Recipe(O2, amp.Scaling.like("keras", warn_after_skips=5)),
        "lost",
        "does not count",
    ),
    "decorate.save_dtype": (amp.Recipe(O2, save_dtype="float16"), "lost", 'astype("float16")'),
}


@pytest.mark.parametrize("key", LOST)
def test_what_keras_cannot_express_is_said(key: str) -> None:
    recipe, kind, words = LOST[key]
    report = fidelity(recipe, "tensorflow")
    found = rows(report)[key]
    assert found[0] == kind
    assert words in found[1]
    assert report.can_be_expressed == (kind != "lost")


def test_keras_accumulation_without_a_scaler_overflows_no_earlier() -> None:
    (row,) = (r for r in fidelity(amp.Recipe("O2:bfloat16", None, 3), "tensorflow").rows[:1])
    assert row.message == "a LearningRateSchedule counts micro-batches: give it 3 times the steps"


def test_only_ops_that_the_script_names_are_mentioned() -> None:
    """And of those none that Keras runs in float32 as well: losses, normalizations."""
    recipe = amp.Recipe(O1, clip_norm=1.0)
    used = {"cross_entropy", "layer_norm", "linear", "softmax", "mean", "embedding"}
    found = rows(fidelity(recipe, "tensorflow", used=used))
    assert found["policy.lists"][1] == (
        "Keras casts layer by layer, not op by op: softmax, mean, embedding run in float16; cast "
        'before them, or give Softmax, GlobalAveragePooling2D, Embedding dtype="float32"'
    )
    assert "Embedding's gradient is clipped" in found["step.clip_norm"][1]
    for names in (set(), {"cross_entropy", "linear"}, None):
        found = rows(fidelity(recipe, "tensorflow", used=names))
        assert found == {"policy.lists": ("changes", "Keras casts layer by layer, not op by op")}
    assert rows(fidelity(amp.Recipe(O2), "tensorflow", used={"linear"})) == {}


@pytest.mark.parametrize("target", ("paddle", "tensorflow", "torch"))
def test_what_float32_means_is_written_with_ampbridge(target: str) -> None:
    assert "policy.float32" in fidelity(amp.Recipe(amp.Policy("O0", float32="ieee")), target).lacks


@pytest.mark.parametrize("target", ("paddle", "torch"))
def test_what_is_written_with_ampbridge_is_said(target: str) -> None:
    recipe = amp.Recipe(O1.replace(lists="safe"), amp.Scaling.like("megatron"))
    report = fidelity(recipe, target)
    assert not report.native
    assert report.rows == ()
    assert {"policy.lists", "scaler.backoff_count"} <= set(report.lacks)
    assert str(report).startswith(f"Fidelity ({target}, with ampbridge): every setting is kept\n")
    assert f"{target} itself has nothing for policy.lists, scaler." in str(report)
    assert fidelity(recipe, target, native=False).lacks == ()


@pytest.mark.parametrize(
    "recipe, target, key",
    (
        (amp.Recipe("O1", amp.Scaling.like("torch")), "torch", "policy.lists"),
        (amp.Recipe(O1, amp.Scaling.like("paddle")), "paddle", "policy.level"),
        (amp.Recipe(O2, amp.Scaling.like("paddle")), "paddle", "decorate.master_grad"),
    ),
)
def test_what_torch_and_paddle_do_elsewhere(recipe: amp.Recipe, target: str, key: str) -> None:
    report = fidelity(recipe, target)
    assert report.native
    assert key in rows(report)
    assert not fidelity(recipe.replace(policy=amp.Policy("O0")), target).rows


@pytest.mark.parametrize("native", (True, False))
def test_lists_that_tensorflow_has_not_become_its_own(native: bool) -> None:
    policy = amp.Policy("O2", lists="native")
    for recipe in (amp.Recipe(policy), amp.Recipe(schedule=amp.Schedule([(0, "O0"), (9, policy)]))):
        report = fidelity(recipe, "tensorflow", native=native)
        assert ("policy.lists" in rows(report)) == (not report.native)


def test_it_fits_on_one_screen() -> None:
    everything: dict[str, Any] = {
        "policy": O2.replace(allow=["batch_norm"], deny=["sum"], keep=["head"], masters=None),
        "scaler": amp.Scaling.like("deepspeed", warn_after_skips=5, max_consecutive_skips=9),
        "accumulate": 2,
        "on_overflow": "drop_microbatch",
        "clip_norm": 0.5,
        "save_dtype": "float16",
    }
    report = fidelity(amp.Recipe(**everything), "tensorflow", used={"embedding", "softmax"})
    assert len(report.rows) == 11
    assert [row.kind for row in report.rows] == ["changes"] * 7 + ["lost"] * 4
    lines = str(report).splitlines()
    assert lines[0] == "Fidelity (tensorflow, native code): 7 changed and 4 lost"
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80


def test_the_report_is_plain_data() -> None:
    data = json.loads(
        json.dumps(fidelity(amp.Recipe(O2, save_dtype="float16"), "tensorflow").to_dict())
    )
    assert (data["native"], data["can_be_expressed"], data["lacks"]) == (True, False, [])
    (row,) = (each for each in data["settings"] if each["kind"] == "lost")
    assert (row["key"], row["value"]) == ("decorate.save_dtype", "float16")
