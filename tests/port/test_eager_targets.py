"""Modules for torch and Paddle as text: read back, in form, and with the recipe's numbers in them.

``tests/torch/test_written_code.py`` and ``tests/paddle/test_written_code.py`` run them.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import drawn_recipes
import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_modules import POWERS_OF_TWO, assert_in_good_form, few

import ampbridge as amp
from ampbridge import port
from ampbridge.policies import native_lists
from ampbridge.policies import paddle_names as names
from ampbridge.policies.op_table import ops
from ampbridge_port.writers import losses, write

TARGETS = ("paddle", "torch")
LOW = ("float16", "bfloat16")


def accumulated(draw: st.DrawFn, policy: amp.Policy, scaler: amp.Scaling | None) -> amp.Recipe:
    clip_norm = draw(st.none() | st.floats(1e-3, 1e3))
    return amp.Recipe(policy, scaler, draw(st.sampled_from((1, 2, 10))), clip_norm)


# -- what a framework expresses by itself


@st.composite
def recipes_of_torch(draw: st.DrawFn) -> amp.Recipe:
    """``torch.autocast``, ``torch.amp.GradScaler``, clipping and accumulation."""
    scaling = amp.Scaling.like(
        "torch",
        init_scale=draw(POWERS_OF_TWO),
        growth_factor=draw(st.sampled_from((2.0, 1.5, 4.0))),
        backoff_factor=draw(st.sampled_from((0.5, 0.25, 0.8))),
        growth_interval=draw(st.integers(1, 10**6)),
    )
    policy = amp.Policy("O1", draw(st.sampled_from(LOW)))
    return accumulated(draw, policy, draw(st.sampled_from((None, scaling))))


@few(40)
@given(recipe=recipes_of_torch())
def test_what_was_written_for_torch_is_read_as_it_was(recipe: amp.Recipe, tmp_path: Path) -> None:
    assert_read_as_written(recipe, "torch", tmp_path)


@st.composite
def recipes_of_paddle(draw: st.DrawFn) -> amp.Recipe:
    """``auto_cast`` with custom lists, ``decorate``, ``GradScaler``, an optimizer's clipping."""
    level, dtype = draw(st.sampled_from(("O1", "O2"))), draw(st.sampled_from(LOW))
    own = native_lists.own_rules("paddle", amp.Policy(level, dtype, lists="paddle"))
    movable = [op for op in own if names.paddle_names(op) and not names.moved_with(op)]
    allow = draw(st.sets(st.sampled_from(movable), max_size=12))
    deny = draw(st.sets(st.sampled_from(movable), max_size=12)) - allow
    masters = draw(st.booleans()) or level == "O1"
    policy = amp.Policy(
        level, dtype, lists="paddle", allow=allow, deny=deny, master_weights=masters
    )
    scaling = amp.Scaling.like(
        "paddle",
        init_scale=draw(POWERS_OF_TWO),
        growth_factor=draw(st.sampled_from((2.0, 1.5, 4.0))),
        backoff_factor=draw(st.sampled_from((0.5, 0.25, 0.8))),
        growth_interval=draw(st.integers(1, 10**6)),
        backoff_interval=draw(st.integers(1, 10)),
    )
    scaling = draw(st.sampled_from((scaling, amp.Scaling.like("paddle", dynamic=False))))
    scaler = draw(st.sampled_from((None, scaling))) if dtype == "float16" else None
    recipe = accumulated(draw, policy, scaler)
    if level == "O1":
        return recipe
    save_dtype = draw(st.sampled_from((None, "float16", "bfloat16", "float32")))
    return recipe.replace(save_dtype=save_dtype, master_grad=draw(st.booleans()))


@few(40)
@given(recipe=recipes_of_paddle())
def test_what_was_written_for_paddle_is_read_as_it_was(recipe: amp.Recipe, tmp_path: Path) -> None:
    assert_read_as_written(recipe, "paddle", tmp_path)


def assert_read_as_written(recipe: amp.Recipe, target: str, folder: Path) -> None:
    file = folder / "written.py"
    file.write_text(write(recipe, target), encoding="utf-8")
    reading = port.read(file)
    assert reading.framework == target
    assert reading.recipe == recipe


# -- any recipe


@st.composite
def recipes(draw: st.DrawFn) -> amp.Recipe:
    """Policies, schedules and scalers of all kinds."""
    known = st.sampled_from(sorted(ops()))
    allow = draw(st.sets(known, max_size=2))
    policies = st.builds(
        drawn_recipes.policy,
        st.sampled_from(("O0", "O1", "O2")),
        st.sampled_from(("float16", "bfloat16")),
        lists=st.sampled_from(("torch", "paddle", "tensorflow", "safe")),
        allow=st.just(allow),
        deny=st.sets(known, max_size=3).map(lambda found: found - allow),
        keep=st.sampled_from(((), ("head", "decoder.*"), ('a"b\\',))),
        master_weights=st.booleans(),
        output_dtype=st.sampled_from(("float32", "float16")),
    ) | st.just(amp.Policy("O1", lists="native"))
    schedules = st.one_of(
        st.builds(lambda a, b: amp.Schedule([(0, a), (100, b)]), policies, policies),
        st.builds(
            lambda a, b, back: amp.Schedule.when(skips=3, use=a, otherwise=b, back_after=back),
            policies,
            policies,
            st.sampled_from((None, 7)),
        ),
        st.builds(
            lambda a, b: amp.Schedule.when(loss_below=0.5, use=a, otherwise=b, back_above=2.0),
            policies,
            policies,
        ),
    )
    presets = st.sampled_from(("torch", "paddle_fleet", "keras", "deepspeed", "megatron", "apex"))
    scalings = st.builds(amp.Scaling.like, presets, growth_interval=st.integers(1, 3000))
    by_hand = st.builds(
        amp.Scaling,
        init_scale=POWERS_OF_TWO,
        backoff_factor=st.floats(0.125, 1.0, width=32),
        backoff_count=st.sampled_from(("consecutive", "until_finite", "until_growth")),
        backoff_interval=st.integers(1, 4),
        growth_delay=st.integers(0, 2),
        dynamic=st.booleans(),
        warn_after_skips=st.sampled_from((None, 5)),
    )
    schedule = draw(st.none() | schedules)
    drops = ["drop_step"] if schedule is not None and schedule.counts_skips else []
    policy = draw(policies)
    return amp.Recipe(
        amp.Policy() if schedule is not None else policy,
        draw(st.none() | scalings | by_hand),
        draw(st.integers(1, 3)),
        schedule=schedule,
        on_overflow=draw(st.sampled_from(drops or ["drop_step", "drop_microbatch"])),
        **drawn_recipes.clipping(draw),
        **drawn_recipes.parameter_settings(draw, schedule or policy, (None, "float16", "float32")),
    )


@pytest.mark.parametrize("target", TARGETS)
@few(2)
@given(some=st.lists(recipes(), min_size=20, max_size=20))
def test_modules_are_in_good_form(some: list[amp.Recipe], target: str, tmp_path: Path) -> None:
    assert_in_good_form(some, target, tmp_path)


@pytest.mark.parametrize("target", TARGETS)
@few(30)
@given(recipe=recipes())
def test_losses_are_of_the_recipe(recipe: amp.Recipe, target: str) -> None:
    """Keys are those of a recipe file; a loss is of something that the recipe has."""
    sections = {"policy", "scaler", "step", "decorate", "schedule"}
    found = losses(recipe, target)
    assert len(set(found)) == len(found)
    for loss in found:
        section, _, name = loss.key.partition(".")
        assert section in sections
        assert loss.kind in ("changes", "lost")
        if section == "policy":
            values = [policy.to_dict()[name] for policy in recipe.policies]
            assert any(value not in (None, ()) for value in values)
    if all(policy.level == "O0" for policy in recipe.policies):
        assert found == ()


@pytest.mark.parametrize("target", TARGETS)
def test_the_source_s_words_stand_behind_its_numbers(target: str) -> None:
    recipe = amp.Recipe(
        amp.Policy("O1", lists="torch", deny=["sum"]),
        amp.Scaling(init_scale=1000.0, backoff_factor=0.8, backoff_interval=2),
        accumulate=4,
    )
    comments = {
        "policy.deny": "custom_black_list: reduce_sum",
        "scaler.backoff_interval": "decr_every_n_nan_or_inf=2",
        "step.accumulate": "k_steps=4",
    }
    code = write(recipe, target, comments=comments)
    assert '#     deny = ["sum"] # custom_black_list: reduce_sum\n' in code
    assert "BACKOFF_INTERVAL = 2  # decr_every_n_nan_or_inf=2\n" in code
    assert "ACCUMULATE = 4  # k_steps=4\n" in code
    assert "INIT_SCALE = 1000.0\n" in code
    assert "BACKOFF_FACTOR = 0.800000011920929  # 0.8 in float32\n" in code


@pytest.mark.parametrize("target", TARGETS)
def test_a_module_has_no_more_than_its_recipe_needs(target: str) -> None:
    """Of a plain recipe; each name that is left out stands for a section."""
    lists = {"torch": "torch", "paddle": "paddle"}[target]
    code = write(amp.Recipe(amp.Policy("O1", lists=lists), None), target)
    tree = ast.parse(code)
    classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    assert classes == {"TrainStep"}
    used: set[Any] = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert used.isdisjoint({"ACCUMULATE", "PRECISION", "LossScale", "kept_layers"})
