"""States, policies, recipes and checkpoints that somebody broke: each is an AmpBridgeError, or was harmless.

``mutated`` starts from something that loads and damages it: keys go, come and are renamed, values
become anything that JSON or a caller can hold. Whatever is refused must leave no trace.
"""

import copy
import math
import random
import warnings

import numpy as np
import pytest

import ampbridge as amp
from ampbridge import GradScaler, Policy, Recipe, Scaling, Schedule
from ampbridge.checkpoints import checkpoint
from ampbridge.checkpoints.checkpoint import Checkpoint
from ampbridge.policies.schedule import from_dict

CASES = 5_000  # in all

ANYTHING = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**40,
    -(2**70),
    10**400,
    0.0,
    -0.0,
    1.5,
    1e300,
    math.inf,
    -math.inf,
    math.nan,
    "",
    "O1",
    "float16",
    "\x00",
    "x" * 1000,
    [],
    [1, 2],
    [None],
    {},
    {"version": 2},
    {"a": {"b": []}},
    (),
    b"bytes",
    1j,
    np.float32(3),
    np.array([1.0, 2.0]),
    np.array("text"),
    np.array(None),
    object(),
    print,
    range(3),
    {1, 2},
)


def mutated(value, draw):
    """``value`` with one to three things in it changed."""
    value = copy.deepcopy(value)
    for _ in range(draw.randint(1, 3)):
        value = damaged(value, draw)
    return value


def damaged(value, draw):
    if draw.random() < 0.15 or not isinstance(value, (dict, list)) or not value:
        return draw.choice(ANYTHING)
    if isinstance(value, list):
        place = draw.randrange(len(value))
        return [*value[:place], damaged(value[place], draw), *value[place + 1 :]]
    key = draw.choice(list(value))
    kind = draw.choice(["deeper", "gone", "new", "renamed"])
    rest = {k: v for k, v in value.items() if k != key}
    if kind == "deeper":
        return {**value, key: damaged(value[key], draw)}
    if kind == "gone":
        return rest
    if kind == "new":
        return {**value, draw.choice(["x", "", 3, None, "scale "]): draw.choice(ANYTHING)}
    return {**rest, draw.choice(["x", "scale", "step", 7]): value[key]}


def refused_or_harmless(call):
    """Whether ``call`` went through; if not, it must have been refused in our own words."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", amp.AmpBridgeWarning)
        try:
            call()
        except amp.AmpBridgeError as error:
            message = str(error)
        else:
            return True
    assert "\nHint: " in message, message
    return False


@pytest.fixture
def draw():
    return random.Random(5)


SCALER_STATES = [
    GradScaler(64.0, growth_interval=3).state_dict(),
    GradScaler.like("deepspeed").state_dict(),
    {
        "scale": 512.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 9,
        "_growth_tracker": 4,
    },
    {
        "scale": np.array([512.0], np.float32),
        "incr_ratio": 2.0,
        "decr_ratio": 0.5,
        "incr_every_n_steps": 9,
        "decr_every_n_nan_or_inf": 1,
        "incr_count": 4,
        "decr_count": 0,
        "use_dynamic_loss_scaling": True,
    },
    {"dynamic_scale": np.float32(512.0), "step_counter": np.int32(4), "dynamic_growth_steps": 9},
]


@pytest.mark.parametrize(
    "start", SCALER_STATES, ids=["ours", "deepspeed", "torch", "paddle", "keras"]
)
def test_scaler_states(start, draw):
    for _ in range(CASES * 3 // 10 // len(SCALER_STATES)):
        scaler = GradScaler(8.0)
        before = scaler.state_dict()
        state = mutated(start, draw)
        if refused_or_harmless(lambda scaler=scaler, state=state: scaler.load_state_dict(state)):
            after = scaler.state_dict()
            assert after["min_scale"] <= after["scale"] <= after["max_scale"]
            GradScaler().load_state_dict(after)
        else:
            assert scaler.state_dict() == before


def loss_fn(model):
    return np.float32(1.0)


@pytest.mark.parametrize(
    "plan", [Policy("O1"), Schedule([(0, "O0"), (2, "O1")])], ids=["policy", "plan"]
)
def test_training_states(toy, plan, draw):
    model = toy.Model()
    step = amp.train_step(loss_fn, model, toy.Optimizer(model), policy=plan)
    start = step.state_dict()
    for _ in range(CASES * 3 // 20 // 2):
        before = step.state_dict()
        state = mutated(start, draw)
        if refused_or_harmless(lambda state=state: step.load_state_dict(state)):
            step.load_state_dict(step.state_dict())
        else:
            assert step.state_dict() == before


PLANS = [
    Policy("O2", "bfloat16", keep=["head"], allow=["exp"]).to_dict(),
    Schedule([(0, "O0"), (2, "O1")]).to_dict(),
    Schedule.when(skips=3, use="O0", otherwise="O1").to_dict(),
    Schedule.when(loss_below=0.5, use="O1", otherwise="O0").to_dict(),
]


@pytest.mark.parametrize("start", PLANS, ids=["policy", "steps", "skips", "loss"])
def test_policies_and_schedules(start, draw):
    for _ in range(CASES * 3 // 20 // len(PLANS)):
        data = mutated(start, draw)
        made = []
        if refused_or_harmless(lambda data=data, made=made: made.append(from_dict(data))):
            assert from_dict(made[0].to_dict()) == made[0]


@pytest.mark.parametrize("words", ["O1:float16", "mixed_float16", "O2:bfloat16"])
def test_policies_as_words(words, draw):
    letters = "O012:float16bmxed_-\x00\ud800 "
    for _ in range(CASES // 20 // 3):
        text = list(words)
        for _ in range(draw.randint(1, 4)):
            place = draw.randrange(len(text) + 1)
            text[place : place + draw.randint(0, 2)] = draw.choice(letters)
        refused_or_harmless(lambda text=text: Policy.parse("".join(text)))
    for value in ANYTHING:
        refused_or_harmless(lambda value=value: Policy.parse(value))


RECIPES = [
    Recipe(
        Policy("O2", lists="paddle", deny=["sum"], keep=["head"]), Scaling.like("paddle"), 4, 1.0
    ),
    Recipe(schedule=Schedule([(0, "O0"), (2, Policy("O1", deny=["exp"]))]), save_dtype="float32"),
    Recipe(schedule=Schedule.when(skips=3, use="O0", otherwise="O1"), scaler=None),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=["policy", "steps", "skips"])
def test_recipes(recipe, draw):
    start = recipe.to_dict()
    for _ in range(CASES // 10 // len(RECIPES)):
        data = mutated(start, draw)
        made = []
        if refused_or_harmless(lambda data=data, made=made: made.append(Recipe.from_dict(data))):
            assert Recipe.from_toml(made[0].to_toml()) == made[0]


@pytest.mark.parametrize("recipe", RECIPES, ids=["policy", "steps", "skips"])
def test_recipe_files(recipe, draw, tmp_path):
    """Bytes go, come and change places, in the file itself."""
    start, path = recipe.to_toml().encode(), tmp_path / "recipe.toml"
    pieces = [
        b"[",
        b"]",
        b'"',
        b"=",
        b"\n",
        b"[[",
        b"{",
        b"\xff",
        b"\x00",
        b"[" * 2000,
        b"1e999",
        b"#",
    ]
    for _ in range(CASES * 3 // 20 // len(RECIPES)):
        damaged_file = start
        for _ in range(draw.randint(1, 3)):
            place = draw.randrange(len(damaged_file))
            tail = damaged_file[place + draw.choice([0, 1, 10, 10**6]) :]
            damaged_file = damaged_file[:place] + draw.choice([b"", *pieces]) + tail
        path.write_bytes(damaged_file)
        refused_or_harmless(lambda: Recipe.load(path))


def test_checkpoints(toy, draw, tmp_path):
    """The JSON in them; their files are damaged in test_checkpoint.py."""
    model = toy.Model()
    step = amp.train_step(loss_fn, model, toy.Optimizer(model))
    step()
    step.save(tmp_path)
    state, tensors = checkpoint.read(tmp_path)
    for _ in range(CASES * 3 // 20):
        model.weight += 1.0  # or nobody would see whether it is taken from the checkpoint
        weight, before = model.weight.copy(), step.state_dict()
        try:
            checkpoint.write(tmp_path, Checkpoint(mutated(state, draw), tensors))
        except amp.UnsupportedError:
            continue  # what JSON cannot hold, no file holds
        if not refused_or_harmless(lambda: step.load(tmp_path)):
            assert step.state_dict() == before
            assert model.weight == weight


ENDLESS = "9" * 5000
"""More digits than Python's int() takes from a text, since 3.11."""


def test_a_number_of_five_thousand_digits(toy, tmp_path):
    model = toy.Model()
    step = amp.train_step(loss_fn, model, toy.Optimizer(model))
    step()
    step.save(tmp_path)
    file = tmp_path / "state.json"
    changed = file.read_text().replace('"step": 1,', f'"step": {ENDLESS},')
    assert ENDLESS in changed
    file.write_text(changed)
    with pytest.raises(amp.StateError, match="Hint:"):
        step.load(tmp_path)
    for text in (f"[scaler]\ninit_scale = {ENDLESS}", f"[step]\naccumulate = {ENDLESS}"):
        with pytest.raises(amp.RecipeError, match="Hint:"):
            Recipe.from_toml(text)
