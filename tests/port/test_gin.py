"""What gin files bind. Expected values are what gin-config 0.5.0 gave for the same files."""

import textwrap

import pytest

from ampbridge import SourceError, port

PROGRAM = """
import gin, keras

@gin.configurable
def precision(policy="float32"):
    keras.config.set_dtype_policy(policy)

@gin.configurable("opt")
def make_optimizer(rate=0.1, clip=None, steps=None):
    return keras.optimizers.Adam(rate, global_clipnorm=clip, gradient_accumulation_steps=steps)

@gin.configurable
class Trainer:
    def __init__(self, optimizer=None, scale=True):
        precision()
        model = keras.Sequential([keras.layers.Dense(3)])
        model.compile(optimizer, "mse", auto_scale_loss=scale)
        model.fit(x, y)

gin.parse_config_files_and_bindings(FILES, BINDINGS)
Trainer(FIRST)
"""
BINDINGS = """
include 'base.gin'
STEPS = 4  # "and" @not(a) %macro
precision.policy = 'mixed_float16'
opt.steps = %STEPS
main.Trainer.optimizer = @opt()
eval/opt.clip = 9.0
"""


def read(folder, program, **options):
    (folder / "main.py").write_text(textwrap.dedent(program))
    (folder / "run.gin").write_text(BINDINGS)
    (folder / "base.gin").write_text(
        "opt.clip = 2.0\nopt.steps = 8\nTrainer.scale = (\n    True)\n"
    )
    return port.read(folder / "main.py", **options)


@pytest.mark.parametrize(
    "files, first, options",
    [
        ('["run.gin"], []', "", {}),
        ('args.gin_file, ["opt.clip = 2.0"]', "", {"config": "run.gin"}),
        ('["run.gin"], []', "make_optimizer()", {}),
    ],
)
def test_bindings_stand_where_no_call_passes_an_argument(
    tmp_path, monkeypatch, files, first, options
):
    monkeypatch.chdir(tmp_path)
    program = PROGRAM.replace("FILES, BINDINGS", files).replace("FIRST", first)
    recipe = read(tmp_path, program, **options).recipe
    assert (recipe.policy.level, recipe.policy.dtype) == ("O2", "float16")
    assert (recipe.accumulate, recipe.clip_norm) == (4, 2.0)


def test_a_macro_and_a_binding_can_be_overridden(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = PROGRAM.replace("FILES, BINDINGS", '["run.gin"], []').replace("FIRST", "")
    reading = read(tmp_path, program, config="run.gin", override=["STEPS=3", "opt.clip=1.5"])
    assert (reading.recipe.accumulate, reading.recipe.clip_norm) == (3, 1.5)


def test_without_a_file_the_defaults_hold(tmp_path):
    program = PROGRAM.replace("FILES, BINDINGS", "args.gin_file, []").replace(
        "FIRST", "make_optimizer()"
    )
    reading = read(tmp_path, program)
    assert reading.recipe is None or reading.recipe.policy.level == "O0"


@pytest.mark.parametrize("text", ["f.x = = 3", "f.x = (1, 2", "f.x = name"])
def test_what_is_no_gin_file_is_refused(tmp_path, text):
    (tmp_path / "main.py").write_text("import gin")
    (tmp_path / "broken.gin").write_text(text)
    with pytest.raises(SourceError, match="is no gin file"):
        port.read(tmp_path / "main.py", config=tmp_path / "broken.gin")


def test_a_factor_that_compile_takes_away_is_told(tmp_path):
    program = """
    import keras
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential([keras.layers.Dense(3)])
    model.compile(keras.optimizers.Adam(loss_scale_factor=1024.0), "mse")
    model.fit(x, y)
    """
    reading = read(tmp_path, program)
    assert reading.recipe.scaler.init_scale == 2.0**15
    told = next(each for each in reading.findings if "loss_scale_factor" in each.message)
    assert (told.kind, told.place.line) == ("ignored", 5)
    wrapped = program.replace(
        "keras.optimizers.Adam(", "keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam("
    ).replace("1024.0)", "1024.0), 8.0)")
    assert read(tmp_path, wrapped).recipe.scaler.init_scale == 8.0
    by_hand = program.replace('"mse")', '"mse", auto_scale_loss=False)')
    assert read(tmp_path, by_hand).recipe.scaler.init_scale == 1024.0
