"""Modules for TensorFlow as text: read back, in form, and with the recipe's numbers in them.

``tests/tensorflow/test_written_code.py`` runs them.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import drawn_recipes
import pytest
from foreign_scripts import SNIPPETS, reading_of
from hypothesis import example, given
from hypothesis import strategies as st
from written_modules import POWERS_OF_TWO, assert_in_good_form, few
from written_programs import GUIDE

import ampbridge as amp
from ampbridge import port
from ampbridge_port.writers import losses, write

SCRIPTS = Path(__file__).parent / "scripts"


# -- what TensorFlow and Keras express by themselves


@st.composite
def recipes_of_keras(draw: st.DrawFn) -> amp.Recipe:
    """Policies of Keras, the graph optimizer, LossScaleOptimizer, clipping, Keras' accumulation."""
    policy = draw(
        st.sampled_from(
            (
                amp.Policy("O0"),
                amp.Policy("O1", "float16", lists="tensorflow"),
                amp.Policy("O2", "float16", lists="tensorflow"),
                amp.Policy("O2", "bfloat16", lists="tensorflow"),
            )
        )
    )
    scaling = amp.Scaling.like(
        "keras", init_scale=draw(POWERS_OF_TWO), growth_interval=draw(st.integers(1, 10**6))
    )
    micro_batches = draw(st.sampled_from((1, 2, 10)))
    return amp.Recipe(
        policy,
        draw(st.sampled_from((None, scaling))),
        micro_batches,
        draw(st.none() | st.floats(1e-3, 1e3)),
        on_overflow="drop_microbatch" if micro_batches > 1 else "drop_step",
    )


@few(20)
@given(recipe=recipes_of_keras())
def test_what_was_written_is_read_as_it_was(recipe: amp.Recipe, tmp_path: Path) -> None:
    file = tmp_path / "written.py"
    file.write_text(write(recipe, "tensorflow"), encoding="utf-8")
    reading = port.read(file)
    assert reading.framework == "tensorflow"
    if recipe.scaler is not None:
        assert reading.recipe == recipe
        return
    (alternative,) = reading.alternatives  # an optimizer of its own, which skips what overflows
    assert {*alternative.unknown} == {"scaler.init_scale", "scaler.growth_interval"}
    known = {"scaler.init_scale": 1.0, "scaler.growth_interval": 1}
    assert alternative.recipe_with(known).replace(scaler=None) == recipe


def test_a_scale_of_one_s_own_making_is_not_read_but_told(tmp_path: Path) -> None:
    file = tmp_path / "written.py"
    file.write_text(write(amp.Recipe("O2"), "tensorflow"), encoding="utf-8")
    reading = port.read(file)
    (alternative,) = reading.alternatives
    assert {*alternative.unknown} == {"scaler.init_scale", "scaler.growth_interval"}
    assert any("own making cannot be read" in finding.message for finding in reading.findings)


# -- any recipe


@st.composite
def recipes(draw: st.DrawFn) -> amp.Recipe:
    """Policies, schedules and scalers of all kinds."""
    names = ("softmax", "sum", "layer_norm", "relu", "conv2d", "embedding")
    allow = draw(st.sets(st.sampled_from(names), max_size=2))
    policies = st.builds(
        drawn_recipes.policy,
        st.sampled_from(("O0", "O1", "O2")),
        st.sampled_from(("float16", "bfloat16")),
        lists=st.sampled_from(("torch", "paddle", "tensorflow", "safe")),
        allow=st.just(allow),
        deny=st.sets(st.sampled_from(names), max_size=3).map(lambda found: found - allow),
        keep=st.sampled_from(((), ("head", "decoder.*"), ('a"b\\',))),
        output_dtype=st.sampled_from(("float32", "float16")),
    )
    schedules = st.builds(lambda a, b: amp.Schedule([(0, a), (100, b)]), policies, policies)
    presets = st.sampled_from(("torch", "paddle_fleet", "keras", "deepspeed", "megatron", "apex"))
    scalings = st.builds(amp.Scaling.like, presets, growth_interval=st.integers(1, 3000))
    by_hand = st.builds(
        amp.Scaling,
        init_scale=POWERS_OF_TWO,
        backoff_factor=st.floats(0.125, 1.0, width=32),
        backoff_count=st.sampled_from(("consecutive", "until_finite", "until_growth")),
        backoff_interval=st.integers(1, 4),
        dynamic=st.booleans(),
    )
    scaler = draw(st.none() | scalings | by_hand)
    step = {"accumulate": draw(st.integers(1, 3)), **drawn_recipes.clipping(draw)}
    if draw(st.booleans()):
        return amp.Recipe(scaler=scaler, schedule=draw(schedules), **step)
    return amp.Recipe(draw(policies), scaler, **step)


@few(2)
@given(some=st.lists(recipes(), min_size=20, max_size=20))
@example(some=[amp.Recipe(schedule=amp.Schedule([(0, "O0"), (9, amp.Policy("O0", keep=["a"]))]))])
def test_modules_are_in_good_form(some: list[amp.Recipe], tmp_path: Path) -> None:
    assert_in_good_form(some, "tensorflow", tmp_path, longest=110)


@few(20)
@given(recipe=recipes())
def test_no_private_name_is_used(recipe: amp.Recipe) -> None:
    """Of Keras' objects or others, as an attribute or by its name."""
    tree = ast.parse(write(recipe, "tensorflow", demo=True))
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    private = {name for name in names if name.startswith("_") and name.isidentifier()} - {"_"}
    assert {name for name in private if not name.endswith("__")} == set()


USUAL = {
    "Paddle's O1": GUIDE["O1"],
    "Paddle's O2": GUIDE["O2"],
    "torch's guide": amp.Recipe("O1", amp.Scaling.like("torch"), clip_norm=1.0),
    "Keras' guide": amp.Recipe(amp.Policy("O2", lists="tensorflow"), amp.Scaling.like("keras")),
}


ABOUT_80 = 83
LONGEST = {
    ("Paddle's O1", "torch"): 95,
    ("Paddle's O2", "torch"): 130,
    ("Keras' guide", "torch"): 130,
    ("Keras' guide", "paddle"): 85,
}
"""Lists that torch has not, and low copies of weights."""


@pytest.mark.parametrize("target", ("tensorflow", "torch", "paddle"))
@pytest.mark.parametrize("name", USUAL)
def test_the_module_of_a_usual_recipe_is_short(name: str, target: str) -> None:
    assert lines_of_code(write(USUAL[name], target)) <= LONGEST.get((name, target), ABOUT_80)


def lines_of_code(code: str) -> int:
    """None that are empty, comments or docstrings."""
    tree = ast.parse(code)
    texts = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    explained = {n for node in texts for n in range(node.lineno, (node.end_lineno or 0) + 1)}
    lines = [
        line
        for number, line in enumerate(code.splitlines(), 1)
        if number not in explained and line.strip() and not line.lstrip().startswith("#")
    ]
    return len(lines)


def why_long(recipe: amp.Recipe) -> list[str]:
    """What Keras does not do by itself, so that the module has it."""
    scaling, keras = recipe.scaler, amp.Scaling.like("keras")
    found = {
        "a schedule": recipe.schedule is not None,
        "layers kept by name": any(policy.keep for policy in recipe.policies),
        "whole steps are dropped": recipe.accumulate > 1 and recipe.on_overflow == "drop_step",
        "no loss is scaled": scaling is None,
        "the scale is fixed": scaling is not None and not scaling.dynamic,
        "a rule of its own": scaling is not None
        and keras
        != replace(scaling, init_scale=keras.init_scale, growth_interval=keras.growth_interval),
    }
    return [reason for reason, holds in found.items() if holds]


def test_modules_of_the_corpus_are_short_or_have_a_reason() -> None:
    """``pytest -s`` prints how many lines they have."""
    lengths, long = [], []
    lines_of = cache(lambda recipe: lines_of_code(write(recipe, "tensorflow")))
    for file in SNIPPETS:
        known = [each for each in reading_of(file).alternatives if not each.unknown]
        for recipe in dict.fromkeys(each.recipe for each in known):
            lines = lines_of(recipe)
            lengths.append(lines)
            if lines > ABOUT_80:
                long.append((lines, file.name, why_long(recipe)))
    print(f"\n{len(lengths)} modules, median {median(lengths)} lines of code; above {ABOUT_80}:")
    for lines, name, reasons in sorted(long, reverse=True):
        print(f"{lines:5} {name}: {', '.join(reasons)}")
    assert median(lengths) <= ABOUT_80
    assert [each for each in long if not each[2]] == []


@few(20)
@given(recipe=recipes())
@example(recipe=amp.Recipe(scaler=None, schedule=amp.Schedule([(0, "O0"), (9, "O1")])))
def test_a_recipe_as_code_makes_an_equal_one(recipe: amp.Recipe) -> None:
    namespace: dict[str, Any] = {"__name__": "written"}
    exec(write(recipe, "ampbridge"), namespace)
    assert namespace["RECIPE"] == recipe


# -- by hand


def test_the_source_s_words_stand_behind_its_numbers() -> None:
    recipe = amp.Recipe(
        amp.Policy("O1", lists="paddle", deny=["sum"]),
        amp.Scaling.like("paddle", init_scale=1024.0, backoff_interval=2),
    )
    comments: Mapping[str, str] = {
        "policy.deny": "custom_black_list: reduce_sum",
        "scaler.backoff_interval": "decr_every_n_nan_or_inf=(\n    1 + 1\n)",
    }
    code = write(recipe, "tensorflow", comments=comments)
    assert '#     deny = ["sum"] # custom_black_list: reduce_sum\n' in code
    assert "BACKOFF_INTERVAL = 2  # decr_every_n_nan_or_inf=( 1 + 1 )\n" in code
    assert "INIT_SCALE = 1024.0\n" in code


def test_float32_numbers_are_as_one_writes_them() -> None:
    code = write(amp.Recipe("O1", amp.Scaling.like("paddle_fleet")), "tensorflow")
    assert "BACKOFF_FACTOR = 0.8\n" in code
    assert "MAX_SCALE = 2.0**127\n" in code


def test_a_target_that_is_none() -> None:
    with pytest.raises(amp.ArgumentError, match=r"'tensorflw'.*\n.*'tensorflow'"):
        write(amp.Recipe(), "tensorflw")


@pytest.mark.parametrize("script", GUIDE)
def test_the_guide_s_scripts_are_its_recipes(script: str) -> None:
    """The recipes that ``tests/tensorflow/test_written_code.py`` trains with."""
    assert port.read(SCRIPTS / f"paddle_guide_{script.lower()}.py").recipe == GUIDE[script]


@pytest.mark.parametrize("native", (True, False))
def test_lists_that_tensorflow_has_not_become_its_own(native: bool) -> None:
    policy = amp.Policy("O2", lists="native")
    for recipe in (amp.Recipe(policy), amp.Recipe(schedule=amp.Schedule([(0, "O0"), (9, policy)]))):
        said = {(loss.key, loss.kind) for loss in losses(recipe, "tensorflow", native=native)}
        assert ("policy.lists", "changes") in said
        code = write(recipe, "tensorflow", native=native)
        assert "LayerNormalization" in code if native else 'lists="tensorflow"' in code


def test_losses_denied_by_name_are_float32_in_keras() -> None:
    recipe = amp.Recipe(amp.Policy("O2", lists="tensorflow", deny=["cross_entropy", "cumsum"]))
    (loss,) = losses(recipe, "tensorflow")
    assert loss.message.startswith("cumsum: no layers of Keras")
