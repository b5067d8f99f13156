"""Recipes: one value for a run, TOML and back."""

import json
from dataclasses import fields
from inspect import signature

import drawn_recipes
import jsonschema
import pytest
import tomllib
from hypothesis import given
from hypothesis import strategies as st

import ampbridge as amp
from ampbridge import GradScaler, Policy, Recipe, RecipeError, Scaling, Schedule
from ampbridge.policies import op_table
from ampbridge.scaling.presets import PRESETS
from ampbridge.training.recipe_file import SCHEDULE, SECTIONS, schema

PADDLE_GUIDE = """
[policy]
level = "O1"
dtype = "float16"
lists = "paddle"
allow = ["add", "batch_norm"]
deny = ["sum", "cross_entropy"]
[scaler]
init_scale = 1024.0
growth_interval = 500
[step]
accumulate = 1
"""

OPS = sorted(op_table.ops())
OP_LISTS = st.lists(st.sampled_from(OPS), unique=True, max_size=6).flatmap(
    lambda ops: st.integers(0, len(ops)).map(lambda n: (ops[:n], ops[n:]))
)


@st.composite
def policies(draw):
    level = draw(st.sampled_from(["O0", "O1", "O2"]))
    dtype = draw(st.sampled_from(["float16", "bfloat16"]))
    allow, deny = draw(OP_LISTS)
    return drawn_recipes.policy(
        level,
        dtype,
        lists=draw(st.sampled_from(["torch", "paddle", "tensorflow", "safe"])),
        allow=allow,
        deny=deny,
        keep=draw(st.lists(st.sampled_from(["head", "LayerNorm", 'odd "name".*', "größe"]))),
        masters=draw(st.sampled_from(["float32", "kahan", "stochastic", "none"])),
        slots=draw(st.sampled_from(["float32", "bfloat16"])),
        output_dtype=draw(st.sampled_from(["float32", "float16", "bfloat16"])),
        execution=draw(st.sampled_from(["native", "simulated", "auto"])),
        float32=draw(st.sampled_from(["ieee", "tf32", "default"])),
    )


@st.composite
def schedules(draw):
    use, otherwise = draw(policies()), draw(policies())
    kind = draw(st.sampled_from(["steps", "loss", "skips"]))
    if kind == "steps":
        firsts = draw(st.sets(st.integers(1, 10**6), max_size=3))
        return Schedule([(first, draw(policies())) for first in [0, *sorted(firsts)]])
    if kind == "loss":
        below = draw(st.floats(-1e3, 1e3))
        above = below + draw(st.floats(0, 1e3))
        return Schedule.when(use=use, otherwise=otherwise, loss_below=below, back_above=above)
    back = draw(st.none() | st.integers(1, 1000))
    return Schedule.when(
        use=use, otherwise=otherwise, skips=draw(st.integers(1, 9)), back_after=back
    )


scalings = st.builds(
    lambda preset, changes: Scaling.like(preset, **changes) if preset else Scaling(**changes),
    st.none() | st.sampled_from(sorted(PRESETS)),
    st.fixed_dictionaries(
        {},
        optional={
            "init_scale": st.integers(0, 24).map(lambda n: 2.0**n),
            "growth_factor": st.floats(1.0, 8.0, width=32),
            "backoff_factor": st.floats(0.125, 1.0, width=32),
            "growth_interval": st.integers(1, 10**6),
            "backoff_interval": st.integers(1, 100),
            "dynamic": st.booleans(),
            "growth_delay": st.integers(0, 10),
            "backoff_count": st.sampled_from(["consecutive", "until_finite", "until_growth"]),
            "at_min_scale": st.sampled_from(["stay", "raise"]),
            "warn_after_skips": st.none() | st.integers(1, 100),
            "max_consecutive_skips": st.none() | st.integers(1, 100),
        },
    ),
)


@st.composite
def recipes(draw):
    schedule = draw(st.none() | schedules())
    counts_skips = schedule is not None and schedule.counts_skips
    modes = ["drop_step"] if counts_skips else ["drop_step", "drop_microbatch"]
    policy = draw(policies())
    return Recipe(
        Policy() if schedule else policy,
        draw(st.sampled_from(["auto", None]) | scalings),
        draw(st.integers(1, 100)),
        draw(st.none() | st.floats(0.01, 100)),
        schedule,
        on_overflow=draw(st.sampled_from(modes)),
        **drawn_recipes.parameter_settings(draw, schedule or policy, (None, "float32", "float16")),
    )


@given(recipes())
def test_a_recipe_goes_through_toml_and_back(recipe):
    text = recipe.to_toml()
    again = Recipe.from_toml(text)
    assert again == recipe
    assert hash(again) == hash(recipe)
    assert again.to_toml() == text
    data = tomllib.loads(text)  # Python's own reader of TOML, where ours is another
    assert Recipe.from_dict(data) == recipe
    jsonschema.validate(data, schema())


@given(recipes())
def test_a_recipe_prints_as_the_code_that_makes_it(recipe):
    names = {name: getattr(amp, name) for name in ("Policy", "Recipe", "Scaling", "Schedule")}
    assert eval(repr(recipe), names) == recipe


def test_the_worked_example_reads_as_it_says():
    recipe = Recipe.from_toml(PADDLE_GUIDE)
    assert recipe.policy == Policy(
        lists="paddle",
        allow=["paddle:elementwise_add", "paddle:batch_norm"],
        deny=["paddle:reduce_sum", "paddle:softmax_with_cross_entropy"],
    )
    assert recipe.scaler == Scaling(init_scale=1024.0, growth_interval=500)
    assert (recipe.accumulate, recipe.clip_norm, recipe.schedule) == (1, None, None)
    jsonschema.validate(tomllib.loads(PADDLE_GUIDE), schema())


def test_files(tmp_path):
    path = tmp_path / "größe.toml"
    recipe = Recipe(Policy("O2", keep=["größe"]), Scaling.like("paddle", init_scale=1024.0))
    recipe.save(path, comments={"policy.keep": "excluded_layers=[größe]"})
    assert Recipe.load(path) == recipe
    assert 'keep = ["größe"] # excluded_layers=[größe]' in path.read_text("utf-8")


def test_what_no_file_can_hold_is_refused(tmp_path):
    """Half a surrogate pair: the file that is there is left as it is."""
    (tmp_path / "r.toml").write_text("as it was")
    with pytest.raises(RecipeError, match="Cannot write the recipe"):
        Recipe(Policy("O1", keep=["\ud800"])).save(tmp_path / "r.toml")
    assert (tmp_path / "r.toml").read_text() == "as it was"


@pytest.mark.parametrize("name", ["\ud800.toml", "a\0b.toml"])
@pytest.mark.parametrize("call", [Recipe().save, Recipe.load])
def test_a_name_that_no_file_can_have_is_refused(tmp_path, name, call):
    with pytest.raises(amp.ArgumentError, match="No file or folder can have the path"):
        call(tmp_path / name)


def test_short_forms_of_policies_in_a_schedule():
    text = """
    [schedule]
    steps = [[0, "O0"], [200, "mixed_float16"], [900, {level = "O2", keep = ["head"]}]]
    """
    expected = Schedule([(0, "O0"), (200, "O1"), (900, Policy("O2", keep=["head"]))])
    assert Recipe.from_toml(text).schedule == expected
    assert Recipe.from_toml(text).policy == Policy("O0")


def test_scaling_is_where_the_policy_needs_it_unless_said_otherwise():
    assert Recipe.from_toml('[policy]\nlevel = "O1"').scaler == Scaling()
    assert Recipe.from_toml('[policy]\ndtype = "bfloat16"').scaler is None
    assert Recipe.from_toml("[scaler]\nenabled = false").scaler is None
    assert Recipe(schedule=Schedule([(0, "O0"), (9, "O1")])).scaler == Scaling()


@pytest.mark.parametrize("name", PRESETS)
def test_a_scaling_makes_the_scaler_that_it_describes(name):
    scaling = Scaling.like(name, growth_interval=7)
    assert scaling.make().state_dict() == GradScaler.like(name, growth_interval=7).state_dict()
    assert Scaling.of(scaling.make()) == scaling


def test_every_parameter_has_a_key_and_every_key_a_parameter():
    def names(call):
        return set(signature(call).parameters)

    assert set(SECTIONS["policy"]) == {f.name for f in fields(Policy)}
    assert set(SECTIONS["scaler"]) == names(GradScaler) | {"like"}
    assert set(SECTIONS["step"]) <= names(amp.train_step)
    assert set(SECTIONS["decorate"]) == names(amp.decorate) - {"model", "optimizer", "policy"}
    assert set(SCHEDULE) == names(Schedule.when) | {"steps"}
    recipe_fields = {f.name for f in fields(Recipe)}
    assert recipe_fields - set(SECTIONS) == {
        "schedule",
        *SECTIONS["step"],
        *SECTIONS["decorate"],
    } - {"scaler"}
    json.dumps(schema())


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    {
        "no TOML": ("[policy\nlevel=", "no TOML", "amp.Recipe().save('recipe.toml')"),
        "line": ("[policy]\nlevel = O1\n", "line 2", "amp.Recipe().save('recipe.toml')"),
        "section": ("[polcy]", "no 'polcy'", "did you mean 'policy'?"),
        "key": ("[scaler]\ngrowth_intervall = 5", "no 'growth_intervall'", "'growth_interval'"),
        "no table": ("policy = 'O1'", "[policy] is a table, not 'O1'", "[policy]"),
        "level": ("[policy]\nlevel = 'O5'", "policy: Passed level='O5'", "help(amp.Policy)"),
        "op": ("[policy]\ndeny = ['sofmax']", "Unknown op 'sofmax'", "'softmax'"),
        "type": (
            "[scaler]\ngrowth_interval = 'many'",
            "scaler: growth_interval",
            "growth_interval=1",
        ),
        "preset": ("[scaler]\nlike = 'pytorch'", "No preset 'pytorch'", "GradScaler.like('torch')"),
        "enabled": ("[scaler]\nenabled = 'no'", "enabled is true or false", "enabled = false"),
        "accumulate": ("[step]\naccumulate = 0", "Passed accumulate=0", "accumulate=4"),
        "save_dtype": (
            "[decorate]\nsave_dtype = 'int8'",
            "save_dtype='int8'",
            "save_dtype='float32'",
        ),
        "schedule": ("[schedule]\nsteps = [[5, 'O1']]", "start at 0", "Schedule([(0, 'O0')"),
        "schedule's policy": ("[schedule]\nsteps = [[0, 'O9']]", "'O9'", "help(amp.Policy)"),
        "a key of another section": (
            "[step]\nlevel = 'O1'",
            "[step] has no 'level'",
            "[policy] above level",
        ),
        "a key above all sections": (
            "opt_level = 'O1'",
            "no 'opt_level'",
            "[policy] above level = ",
        ),
        "another library's key": (
            "[step]\nmax_norm = 1.0",
            "no 'max_norm'",
            "did you mean 'clip_norm'?",
        ),
        "both": (
            "[policy]\nlevel = 'O2'\n[schedule]\nsteps = [[0, 'O1']]",
            "would never be used",
            "leave policy out",
        ),
    }.values(),
)
def test_what_is_wrong_is_said(text, says, hint):
    with pytest.raises(RecipeError) as caught:
        Recipe.from_toml(text)
    message, _, last = str(caught.value).rpartition("\n")
    assert says in message
    assert last.startswith("Hint: ")
    assert hint in last


def test_what_is_said_of_a_long_text_is_short():
    for text in ("a" * 200_000 + " = 1", "policy = " + "[" * 100_000, f"[step]\n{'b' * 10**5} = 1"):
        with pytest.raises(amp.RecipeError, match="Hint: ") as error:
            amp.Recipe.from_toml(text)
        assert len(str(error.value)) < 700
    with pytest.raises(amp.RecipeError, match=r"has 2,128,889 characters; a recipe has 262,144 at"):
        amp.Recipe.from_toml("\n".join(f"key{i} = 1" for i in range(160_000)))


def test_a_byte_order_mark_is_named(tmp_path):
    file = tmp_path / "recipe.toml"
    file.write_text(amp.Recipe("O2").to_toml(), "utf-8-sig")
    with pytest.raises(amp.RecipeError, match="begins with a byte order mark") as error:
        amp.Recipe.load(file)
    exec(str(error.value).rpartition("Hint: ")[2])
    assert amp.Recipe.load(file) == amp.Recipe("O2")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RecipeError, match=r"missing\.toml"):
        Recipe.load(tmp_path / "missing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match=r"binary\.toml"):
        Recipe.load(tmp_path / "binary.toml")


@pytest.mark.parametrize(
    "arguments",
    [
        {"policy": "O9"},
        {"scaler": GradScaler()},
        {"accumulate": True},
        {"clip_norm": -1},
        {"clip_each_norm": "1"},
        {"clip_value": 0.0},
        {"clip_value": 1.0, "clip_each_norm": 1.0},
        {"schedule": "O1"},
        {"on_overflow": "drop"},
        {"master_grad": 1},
        {"save_dtype": "int8"},
    ],
)
def test_impossible_recipes(arguments):
    with pytest.raises(amp.AmpBridgeError, match=next(iter(arguments))):
        Recipe(**arguments)


# -- train_step


def loss_fn(model):
    return 2.0 * model.array(1.0), None


@pytest.fixture
def make(toy):
    def step(**arguments):
        model = toy.Model(1.0)
        model.array = toy.array
        return amp.train_step(loss_fn, model, toy.Optimizer(model), **arguments)

    return step


def test_a_step_follows_its_recipe(make):
    policy = Policy("O2", lists="paddle", keep=["head"])
    step = make(
        recipe=Recipe(
            policy,
            Scaling.like("paddle", init_scale=8.0),
            2,
            0.5,
            save_dtype="float32",
            master_grad=True,
        )
    )
    results = [step() for _ in range(4)]
    assert [result.reason for result in results] == ["accumulating", None] * 2
    assert results[1].scale == 8.0
    assert results[1].grad_norm == 1.0
    assert step.policy == policy
    (decoration,) = [each for each in step.model.decorations if each]
    assert (decoration.policy, decoration.save_dtype, decoration.master_grad) == (
        policy,
        "float32",
        True,
    )
    assert decoration.kept == [step.model.parts["head"]]


def test_each_step_of_a_recipe_has_a_scaler_of_its_own(make):
    recipe = Recipe()
    assert make(recipe=recipe).scaler is not make(recipe=recipe).scaler
    assert make(recipe=Recipe("O1:bfloat16")).scaler is None


def test_a_recipe_without_scaling_warns_where_it_is_needed(make):
    with pytest.warns(amp.AmpBridgeWarning, match="without loss scaling"):
        assert make(recipe=Recipe(scaler=None)).scaler is None


def test_a_schedule_of_a_recipe(make):
    step = make(recipe=Recipe(schedule=Schedule([(0, "O0"), (1, "O1:bfloat16")])))
    assert [str(step.policy), step().step, str(step.policy)] == ["O0", 1, "O1:bfloat16"]


@pytest.mark.parametrize(
    "beside",
    [{"policy": "O1"}, {"scaler": None}, {"accumulate": 1}, {"clip_norm": 1.0}],
)
def test_nothing_else_is_said_beside_a_recipe(make, beside):
    with pytest.raises(amp.ArgumentError, match=r"recipe\.replace"):
        make(recipe=Recipe(), **beside)


def test_a_recipe_is_a_recipe(make):
    with pytest.raises(amp.ArgumentTypeError, match=r"Recipe\.load"):
        make(recipe="recipe.toml")


@pytest.mark.parametrize("factor", [0.8, 0.1, 1e-3, 0.999, 0.5, 2.0**-20])
def test_numbers_are_written_as_they_were_passed(factor):
    """They are rounded to float32, and 0.8 is 0.800000011920929 then."""
    recipe = Recipe("O1", Scaling.like("paddle", backoff_factor=factor, init_scale=factor))
    expected = "as usual" if factor == 0.5 else factor
    assert recipe.to_dict()["scaler"].get("backoff_factor", "as usual") == expected
    assert recipe.to_dict()["scaler"]["init_scale"] == factor
    assert f"init_scale={factor!r}" in repr(recipe)
    assert f"init_scale = {factor!r} " in recipe.to_toml()
    assert Recipe.from_toml(recipe.to_toml()) == recipe
