"""Written modules as text: in form, with the recipe's numbers, and no more than needed.

``tests/*/test_written_code.py`` run them; test_origins.py looks at where their numbers were read.
"""

from __future__ import annotations

import ast
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import drawn_recipes
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

import ampbridge as amp
from ampbridge.policies.op_table import ops
from ampbridge.training.recipe_file import SECTIONS
from ampbridge_port.writers import TARGETS, lacks, losses, write

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomlkit as tomllib

FRAMEWORKS = ("jax", "paddle", "tensorflow", "torch")
PROGRAMS = sorted(Path(__file__).parent.glob("programs/*/truth.toml"))


def few(examples: int) -> settings:
    """A search that is short in the night, too; an example that fails is not made smaller."""
    return settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)],
    )


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
        keep=st.sampled_from(((), ("head", "decoder.*"), ('a"b\\', "x" * 90))),
        masters=st.sampled_from(("float32", "kahan", "stochastic", "none")),
        slots=st.sampled_from(("float32", "bfloat16")),
        output_dtype=st.sampled_from(("float32", "float16")),
    ) | st.just(amp.Policy("O1", lists="native"))
    schedules = st.builds(lambda a, b: amp.Schedule([(0, a), (100, b)]), policies, policies)
    presets = st.sampled_from(("torch", "paddle", "paddle_fleet", "keras", "deepspeed", "megatron"))
    scalings = st.builds(amp.Scaling.like, presets, growth_interval=st.integers(1, 3000))
    by_hand = st.builds(
        amp.Scaling,
        init_scale=st.integers(-10, 20).map(lambda exponent: 2.0**exponent),
        backoff_factor=st.floats(0.125, 1.0, width=32),
        backoff_count=st.sampled_from(("consecutive", "until_finite", "until_growth")),
        backoff_interval=st.integers(1, 4),
        growth_delay=st.integers(0, 2),
        dynamic=st.booleans(),
        warn_after_skips=st.sampled_from((None, 5)),
    )
    schedule, policy = draw(st.none() | schedules), draw(policies)
    return amp.Recipe(
        amp.Policy() if schedule is not None else policy,
        draw(st.none() | scalings | by_hand),
        draw(st.integers(1, 3)),
        schedule=schedule,
        on_overflow=draw(st.sampled_from(("drop_step", "drop_microbatch"))),
        **drawn_recipes.clipping(draw),
        **drawn_recipes.parameter_settings(draw, schedule or policy, (None, "float16", "float32")),
    )


@pytest.mark.parametrize("target", (*FRAMEWORKS, "ampbridge"))
@few(2)
@given(some=st.lists(recipes(), min_size=20, max_size=20))
@example(some=[amp.Recipe(schedule=amp.Schedule([(0, "O0"), (9, amp.Policy("O0", keep=["a"]))]))])
def test_modules_are_in_good_form(some: list[amp.Recipe], target: str, tmp_path: Path) -> None:
    """As ruff formats and checks them; one process of it looks at all of them."""
    for number, recipe in enumerate(dict.fromkeys(some)):
        for native, demo in itertools.product((True, False), repeat=2):
            code = write(recipe, target, native=native, demo=demo)
            module = tmp_path / f"{target}_{number}_{native}_{demo}.py"
            module.write_text(code, encoding="utf-8")
    formatted = ruff("format", "--diff", str(tmp_path))
    assert formatted.returncode == 0, formatted.stdout
    checked = ruff("check", "--select=F,I,B,UP", "--ignore=B028,B905", str(tmp_path))
    assert checked.returncode == 0, checked.stdout


def ruff(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "ruff", command, "--isolated", "--line-length=100", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False, cwd="/")


@few(30)
@given(recipe=recipes())
@example(recipe=amp.Recipe(scaler=None, schedule=amp.Schedule([(0, "O0"), (9, "O1")])))
def test_with_ampbridge_a_module_has_an_equal_recipe(recipe: amp.Recipe) -> None:
    comments = {"policy.level": 'a """ and \\N'}
    for target in FRAMEWORKS:
        code = write(recipe, target, native=False, comments=comments)
        assert "amp.train_step(" in code
    namespace: dict[str, Any] = {"__name__": "written"}
    exec(write(recipe, "ampbridge", comments=comments), namespace)
    assert namespace["RECIPE"] == recipe


@few(30)
@given(recipe=recipes())
def test_losses_are_of_the_recipe(recipe: amp.Recipe) -> None:
    """Keys are those of a recipe file, and no setting is named twice."""
    for target in FRAMEWORKS:
        keys = [loss.key for loss in losses(recipe, target)]
        assert len({*keys}) == len(keys)
        for key in {*keys, *lacks(recipe, target)} - {"schedule"}:
            section, _, name = key.partition(".")
            assert name in SECTIONS[section]


# -- the programs of others


@pytest.mark.parametrize("file", PROGRAMS, ids=lambda file: file.parent.name)
def test_each_program_s_recipe_is_written_for_every_target(file: Path) -> None:
    recipe = amp.Recipe.from_dict(tomllib.loads(file.read_text("utf-8"))["recipe"])
    for target, native, demo in itertools.product(TARGETS, (True, False), (True, False)):
        code = write(recipe, target, native=native, demo=demo)
        if target == "toml":
            assert amp.Recipe.from_toml(code) == recipe
        else:
            compile(code, f"{target}.py", "exec")
            assert ("def main" in code) == demo
            uses_ampbridge = target == "ampbridge" or not native or bool(lacks(recipe, target))
            assert ("import ampbridge" in code) == uses_ampbridge


def test_comments_stay_on_their_line() -> None:
    comments = {"scaler.init_scale": "init_loss_scaling=(\n    1024\n)"}
    recipe = amp.Recipe("O1", amp.Scaling.like("torch", init_scale=1024.0))
    for target in FRAMEWORKS:
        code = write(recipe, target, comments=comments)
        assert "1024.0" in code
        assert "# init_loss_scaling=( 1024 )\n" in code or target == "paddle"


# -- numbers


def constants(recipe: amp.Recipe, target: str = "tensorflow") -> dict[str, str]:
    """The names in capitals that a module assigns, and their values."""
    assigned = [
        node for node in ast.parse(write(recipe, target)).body if isinstance(node, ast.Assign)
    ]
    return {ast.unparse(node.targets[0]): ast.unparse(node.value) for node in assigned}


def test_a_module_has_no_number_that_does_not_matter() -> None:
    plain = amp.Recipe("O2", amp.Scaling.like("paddle", init_scale=1024.0))
    assert constants(plain) == {"INIT_SCALE": "1024.0", "GROWTH_INTERVAL": "2000"}
    assert constants(amp.Recipe("O2", amp.Scaling.like("paddle", dynamic=False))).keys() == {
        "INIT_SCALE"
    }
    assert constants(amp.Recipe("O2:bfloat16")) == {}
    fleet = constants(amp.Recipe("O1", amp.Scaling.like("paddle_fleet")))
    assert fleet["BACKOFF_FACTOR"] == "0.8"
    assert fleet["MIN_SCALE"] == "1.0"
    assert "MAX_SCALE" not in fleet
    assert constants(amp.Recipe("O1"))["MAX_SCALE"] == "2.0 ** 24"


def test_layers_are_set_only_where_a_policy_has_a_list_of_its_own() -> None:
    """Losses and normalizations are float32 in Keras anyway."""
    own = amp.Policy("O1", lists="paddle", deny=["cross_entropy", "layer_norm", "sum"])
    for policy in (amp.Policy("O1", lists="paddle"), amp.Policy("O2", lists="paddle"), own):
        assert "set_precision" not in write(amp.Recipe(policy), "tensorflow", demo=True)
    for change in ({"deny": ["mean"]}, {"keep": ["head"]}):
        policy = amp.Policy("O2", lists="paddle", **change)
        assert "def set_precision(model):" in write(amp.Recipe(policy), "tensorflow")


def test_a_target_that_is_none() -> None:
    with pytest.raises(amp.ArgumentError, match=r"'tensorflw'.*\n.*'tensorflow'"):
        write(amp.Recipe(), "tensorflw")


def test_the_demo_on_numpy_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Its model does not have the layers that the recipe keeps."""
    recipe = amp.Recipe(amp.Policy("O2", lists="paddle", keep=["head"]), accumulate=2)
    namespace: dict[str, Any] = {"__name__": "written"}
    exec(write(recipe, "ampbridge", demo=True), namespace)
    namespace["main"]()
    assert capsys.readouterr().out.count("StepResult") == 100
