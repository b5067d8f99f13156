"""Wrong calls, and what the user reads: what was passed, what is allowed, and code to write.

Every message is compared word by word; a changed message is a changed interface.
"""

import inspect
import re
import subprocess
import sys
from collections import namedtuple
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

import ampbridge as amp
from ampbridge.adapters import registry

ROOT = Path(__file__).parents[2]
GradScaler, Policy = amp.GradScaler, amp.Policy

LEVELS = "'O0', 'O1' or 'O2'"
FIELDS = (
    "'level', 'dtype', 'lists', 'allow', 'deny', 'keep', 'masters', 'slots', 'output_dtype', 'execution' "
    "or 'float32'"
)
MASTERS_ALLOWED = "allowed are 'float32', 'kahan', 'stochastic' or None ('none' in files)"
SHORT_FORMS = (
    "allowed are 'O0', 'O1', 'O2', 'O1:float16', 'O1:bfloat16', 'O2:float16', 'O2:bfloat16', 'float32', "
    "'fp32', '32', '32-true', 'no', 'float16', 'fp16', '16-mixed', 'mixed_float16', 'bfloat16', 'bf16', "
    "'bf16-mixed' or 'mixed_bfloat16'"
)
OPS_ALLOWED = (
    "allowed are the canonical names, framework names with a prefix "
    "(torch:, paddle:, tf:, tensorflow:, keras:, numpy:, jax:), and functions with their module "
    "(package.module:function)."
)

POLICY_MISTAKES = {
    "level": (
        lambda: Policy("O3"),
        amp.PolicyError,
        f"Passed level='O3'; allowed are {LEVELS}.\n"
        "Hint: Policy('O2', masters=None), which apex calls O3.",
    ),
    "level that is none": (
        lambda: Policy("O7"),
        amp.PolicyError,
        f"Passed level='O7'; allowed are {LEVELS}.\nHint: help(amp.Policy)",
    ),
    "level that is a dtype": (
        lambda: Policy("BF16"),
        amp.PolicyError,
        f"Passed level='BF16'; allowed are {LEVELS}.\nHint: Policy('O1', 'bfloat16')",
    ),
    "masters in the short form": (
        lambda: Policy.parse("O2:kahan"),
        amp.PolicyError,
        "Passed dtype='kahan'; allowed are 'float16' or 'bfloat16'.\n"
        "Hint: Policy('O2', 'bfloat16', masters='kahan')",
    ),
    "no slots": (
        lambda: Policy("O2", slots=None),
        amp.PolicyError,
        "Passed slots=None; allowed are 'float32' or 'bfloat16'.\nHint: slots='float32'",
    ),
    "a third argument by place": (
        lambda: Policy("O2", "bfloat16", "kahan"),
        amp.ArgumentTypeError,
        "Policy takes level, dtype by place, and 'kahan' was passed as well.\n"
        "Hint: amp.Policy('O2', 'bfloat16', masters='kahan')",
    ),
    "a name that is nearly right": (
        lambda: Policy(master="kahan"),
        amp.ArgumentTypeError,
        "Policy has no argument 'master'; allowed are level, dtype, lists, allow, deny, keep, masters, "
        "slots, output_dtype, execution, float32.\nHint: did you mean 'masters'?",
    ),
    "a policy's argument elsewhere": (
        lambda: amp.autocast("O0", float32="ieee"),
        amp.ArgumentTypeError,
        "autocast has no argument 'float32', which is one of Policy.\n"
        "Hint: policy=amp.Policy(..., float32='ieee')",
    ),
    "a scaler's argument elsewhere": (
        lambda: amp.train_step(loss_fn, None, None, init_scale=1024.0, growth_interval=9),
        amp.ArgumentTypeError,
        "train_step has no argument 'init_scale', which is one of GradScaler.\n"
        "Hint: scaler=amp.GradScaler(..., init_scale=1024.0)",
    ),
    "an argument that is missing": (
        lambda: amp.train_step(loss_fn, None),
        amp.ArgumentTypeError,
        "train_step needs 'optimizer', which was not passed.\n"
        "Hint: amp.train_step(loss_fn, model, optimizer)",
    ),
    "one more by place": (
        lambda: amp.undecorated(None, None, True),
        amp.ArgumentTypeError,
        "undecorated takes model, optimizer by place, and True was passed as well.\n"
        "Hint: amp.undecorated(model, optimizer)",
    ),
    "a scale by place, which would be the growth factor": (
        lambda: amp.Scaling(1024.0),
        amp.ArgumentTypeError,
        "Scaling takes nothing by place, and 1024.0 was passed as well.\n"
        "Hint: by its name, one of growth_factor, backoff_factor, growth_interval, backoff_interval, "
        "min_scale, max_scale, dynamic, growth_delay, backoff_count, at_max_scale, at_min_scale, "
        "warn_after_skips, max_consecutive_skips, init_scale, preset",
    ),
    "no loss": (
        lambda: GradScaler().scale(None),
        amp.ArgumentTypeError,
        "The scaler takes a loss or an optimizer of a framework, not None.\n"
        "Hint: scaler.scale(loss)",
    ),
    "a function in deny": (
        lambda: Policy(deny=[abs]),
        amp.ArgumentTypeError,
        "deny takes names, not <built-in function abs> of type builtin_function_or_method.\n"
        "Hint: deny=['abs']",
    ),
    "level in lower case": (
        lambda: Policy("o2"),
        amp.PolicyError,
        f"Passed level='o2'; allowed are {LEVELS}.\nHint: level='O2'",
    ),
    "level with its dtype": (
        lambda: Policy("O2:bfloat16"),
        amp.PolicyError,
        f"Passed level='O2:bfloat16'; allowed are {LEVELS}.\nHint: Policy('O2', 'bfloat16')",
    ),
    "dtype": (
        lambda: Policy("O1", "fp16"),
        amp.PolicyError,
        "Passed dtype='fp16'; allowed are 'float16' or 'bfloat16'.\nHint: dtype='float16'",
    ),
    "dtype of another kind": (
        lambda: Policy("O1", 16),
        amp.PolicyError,
        "Passed dtype=16; allowed are 'float16' or 'bfloat16'.\nHint: dtype='float16'",
    ),
    "list set": (
        lambda: Policy(lists="tensorflw"),
        amp.PolicyError,
        "Passed lists='tensorflw'; allowed are 'torch', 'paddle', 'tensorflow', 'safe' or 'native'.\n"
        "Hint: lists='tensorflow'",
    ),
    "another library's list set": (
        lambda: Policy(lists="Keras"),
        amp.PolicyError,
        "Passed lists='Keras'; allowed are 'torch', 'paddle', 'tensorflow', 'safe' or 'native'.\n"
        "Hint: lists='tensorflow'",
    ),
    "list set of nobody": (
        lambda: Policy(lists="mindspore"),
        amp.PolicyError,
        "Passed lists='mindspore'; allowed are 'torch', 'paddle', 'tensorflow', 'safe' or 'native'.\n"
        "Hint: help(amp.Policy)",
    ),
    "output dtype": (
        lambda: Policy(output_dtype="float64"),
        amp.PolicyError,
        "Passed output_dtype='float64'; allowed are 'float32', 'float16' or 'bfloat16'.\n"
        "Hint: help(amp.Policy)",
    ),
    "execution": (
        lambda: Policy(execution="simulate"),
        amp.PolicyError,
        "Passed execution='simulate'; allowed are 'native', 'simulated' or 'auto'.\n"
        "Hint: execution='simulated'",
    ),
    "float32": (
        lambda: Policy(float32="highest"),
        amp.PolicyError,
        "Passed float32='highest'; allowed are 'ieee', 'tf32' or 'default'.\nHint: float32='ieee'",
    ),
    "masters": (
        lambda: Policy("O2", masters=False),
        amp.PolicyError,
        f"Passed masters=False; {MASTERS_ALLOWED}.\nHint: masters=None",
    ),
    "masters as a dtype": (
        lambda: Policy("O2", masters="float16"),
        amp.PolicyError,
        f"Passed masters='float16'; {MASTERS_ALLOWED}.\nHint: masters=None, which has nothing beside the "
        "16-bit weights; or, for bfloat16, masters='stochastic', which rounds their updates by chance",
    ),
    "masters of nobody": (
        lambda: Policy("O2", masters="int8"),
        amp.PolicyError,
        f"Passed masters='int8'; {MASTERS_ALLOWED}.\nHint: help(amp.Policy)",
    ),
    "kahan in float16": (
        lambda: Policy("O2", masters="kahan"),
        amp.PolicyError,
        "masters='kahan' in float16: 16 more bits make a float32 of a bfloat16; a small float16 weight "
        "lacks up to 24.\n"
        "Hint: Policy('O2', 'bfloat16', masters='kahan'); or masters='float32'",
    ),
    "stochastic rounding to float16": (
        lambda: Policy("O2", masters="stochastic"),
        amp.PolicyError,
        "masters='stochastic' in float16: under 6e-5 its numbers lie 6e-8 apart, however small the "
        "weight, and the updates of such weights would be noise.\n"
        "Hint: Policy('O2', 'bfloat16', masters='stochastic'); or masters='float32'",
    ),
    "low outputs at O0": (
        lambda: Policy("O0", output_dtype="float16"),
        amp.PolicyError,
        "output_dtype='float16' at O0, where a model returns float32.\n"
        "Hint: Policy('O1', 'bfloat16', output_dtype='float16')",
    ),
    "no masters of float32 parameters": (
        lambda: Policy("O1", masters=None),
        amp.PolicyError,
        "masters=None at O1, where parameters are float32 and need no masters.\n"
        "Hint: Policy('O2', 'bfloat16', masters=None)",
    ),
    "slots": (
        lambda: Policy("O2", slots="bf16"),
        amp.PolicyError,
        "Passed slots='bf16'; allowed are 'float32' or 'bfloat16'.\nHint: slots='bfloat16'",
    ),
    "slots as a flag": (
        lambda: Policy("O2", slots=False),
        amp.PolicyError,
        "Passed slots=False; allowed are 'float32' or 'bfloat16'.\nHint: slots='float32'",
    ),
    "low slots of float32 parameters": (
        lambda: Policy("O1", slots="bfloat16"),
        amp.PolicyError,
        "slots='bfloat16' at O1, where the optimizer is left as it is, and its slots are float32.\n"
        "Hint: Policy('O2', 'bfloat16', slots='bfloat16')",
    ),
    "misspelt op": (
        lambda: Policy(deny=["softmux"]),
        amp.PolicyError,
        f"Unknown op 'softmux'; {OPS_ALLOWED}\n"
        "Hint: did you mean 'softmax' or 'softmin' or 'softplus'?",
    ),
    "framework name without its prefix": (
        lambda: Policy(deny=["elementwise_add"]),
        amp.PolicyError,
        f"Unknown op 'elementwise_add'; {OPS_ALLOWED}\n"
        "Hint: did you mean 'paddle:elementwise_add'?",
    ),
    "op like no other": (
        lambda: Policy(deny=["zzzzzz"]),
        amp.PolicyError,
        f"Unknown op 'zzzzzz'; {OPS_ALLOWED}\n"
        "Hint: `ampbridge.policies.op_table.ops()` lists the canonical names.",
    ),
    "misspelt framework name": (
        lambda: Policy(deny=["keras:MaxPooling2"]),
        amp.PolicyError,
        "Unknown op 'keras:MaxPooling2': the op table has no 'MaxPooling2'.\n"
        "Hint: did you mean 'keras:MaxPooling2D' or 'keras:MaxPooling3D' or 'keras:MaxPooling1D'?",
    ),
    "nothing behind the prefix": (
        lambda: Policy(deny=["torch:"]),
        amp.PolicyError,
        "Unknown op 'torch:': the op table has no ''.\n"
        "Hint: `ampbridge.policies.op_table.ops()` lists the canonical names.",
    ),
    "a path that is none": (
        lambda: Policy(deny=["my-package.layers:norm"]),
        amp.PolicyError,
        f"Unknown op 'my-package.layers:norm'; {OPS_ALLOWED}\n"
        "Hint: `ampbridge.policies.op_table.ops()` lists the canonical names.",
    ),
    "one op in both lists": (
        lambda: Policy(allow=["softmax"], deny=["softmax", "paddle:softmax"]),
        amp.PolicyError,
        "'softmax' is in both allow and deny; an op has one rule.\n"
        "Hint: leave it in one list, for example deny=['softmax'].",
    ),
    "a string for a list": (
        lambda: Policy(deny="softmax"),
        amp.ArgumentTypeError,
        "deny takes a list of names, not the string 'softmax'.\nHint: deny=['softmax']",
    ),
    "a number in a list": (
        lambda: Policy(allow=[1]),
        amp.ArgumentTypeError,
        "allow takes names, not 1 of type int.\nHint: allow=['softmax']",
    ),
    "a class in keep": (
        lambda: Policy(keep=[int]),
        amp.ArgumentTypeError,
        "keep takes names, not <class 'int'> of type type.\nHint: keep=['int']",
    ),
    "lists with native": (
        lambda: Policy(lists="native", deny=["exp"]),
        amp.PolicyError,
        "lists='native' intercepts nothing, so allow and deny cannot be honoured "
        "(allow=[], deny=['exp']).\n"
        "Hint: start from a list set, lists='torch', and keep allow and deny.",
    ),
    "category under native": (
        lambda: Policy(lists="native").category("exp"),
        amp.PolicyError,
        "With lists='native' the framework decides op by op; there is no list to look at.\n"
        "Hint: Policy(lists='torch') has the lists of CUDA autocast on every backend.",
    ),
    "the list of O0": (
        lambda: Policy("O0").op_list,
        amp.PolicyError,
        "At O0 every op runs in float32; there is no list to look at.\n"
        "Hint: Policy('O1', 'bfloat16', lists='torch').op_list",
    ),
    "dtype at O0": (
        lambda: Policy.parse("O0:float17"),
        amp.PolicyError,
        "Passed dtype='float17'; allowed are 'float32', 'float16' or 'bfloat16'.\n"
        "Hint: help(amp.Policy)",
    ),
    "short form": (
        lambda: Policy.parse("01"),
        amp.PolicyError,
        f"Cannot read the policy '01'; {SHORT_FORMS}.\nHint: did you mean 'O1'?",
    ),
    "masters behind the short form": (
        lambda: Policy.parse("O2:bfloat16:stochastic"),
        amp.PolicyError,
        "Passed dtype='bfloat16:stochastic'; allowed are 'float16' or 'bfloat16'.\n"
        "Hint: Policy('O2', 'bfloat16', masters='stochastic')",
    ),
    "slots by another name": (
        lambda: Policy("O2", "bfloat16", moments="bfloat16"),
        amp.ArgumentTypeError,
        "Policy has no argument 'moments'; allowed are level, dtype, lists, allow, deny, keep, masters, "
        "slots, output_dtype, execution, float32.\nHint: did you mean 'slots'?",
    ),
    "code in quotes": (
        lambda: Policy.parse("Policy('O2', masters=None)"),
        amp.PolicyError,
        f"Cannot read the policy \"Policy('O2', masters=None)\"; {SHORT_FORMS}.\n"
        "Hint: policy=Policy('O2', masters=None), without quotes",
    ),
    "short form of another kind": (
        lambda: Policy.parse(16),
        amp.ArgumentTypeError,
        "A policy is a Policy or a string, not int (16).\n"
        "Hint: policy='O1' or policy=Policy('O1', 'bfloat16')",
    ),
    "a framework's dtype": (
        lambda: Policy.parse(np.dtype("float16")),
        amp.ArgumentTypeError,
        f"A policy is a Policy or a string, not {type(np.dtype('float16')).__name__} "
        "(dtype('float16')).\n"
        "Hint: policy='O1:float16'",
    ),
    "a framework's class of numbers": (
        lambda: Policy.parse(np.float32),
        amp.ArgumentTypeError,
        "A policy is a Policy or a string, not numpy.float32.\nHint: policy='O0'",
    ),
    "a dtype with its digits exchanged": (
        lambda: Policy.parse("O1:float61"),
        amp.PolicyError,
        "Passed dtype='float61'; allowed are 'float16' or 'bfloat16'.\nHint: policy='O1:float16'",
    ),
    "a dtype by another name": (
        lambda: Policy.parse("O2:bf16"),
        amp.PolicyError,
        "Passed dtype='bf16'; allowed are 'float16' or 'bfloat16'.\nHint: policy='O2:bfloat16'",
    ),
    "field of replace": (
        lambda: Policy().replace(lvl="O1"),
        amp.PolicyError,
        f"policy.replace has no field 'lvl'; allowed are {FIELDS}.\nHint: did you mean 'level'?",
    ),
    "field of from_dict": (
        lambda: Policy.from_dict({"level": "O1", "denied": []}),
        amp.PolicyError,
        f"Policy.from_dict has no field 'denied'; allowed are {FIELDS}.\nHint: did you mean 'deny'?",
    ),
}

SCALER_MISTAKES = {
    "text for a scale": (
        lambda: GradScaler("65536"),
        amp.ArgumentTypeError,
        "init_scale is a number, not '65536' of type str.\nHint: init_scale=2.0**16",
    ),
    "a scale above its bound": (
        lambda: GradScaler(2.0**26),
        amp.ArgumentError,
        "Passed init_scale=67108864.0; allowed is min_scale (5.960464477539063e-08) to max_scale "
        "(16777216.0).\nHint: GradScaler(67108864.0, max_scale=67108864.0)",
    ),
    "growth factor": (
        lambda: GradScaler(growth_factor=0.5),
        amp.ArgumentError,
        "Passed growth_factor=0.5; allowed is at least 1.0.\nHint: GradScaler(growth_factor=2.0)",
    ),
    "backoff factor": (
        lambda: GradScaler(backoff_factor=2.0),
        amp.ArgumentError,
        "Passed backoff_factor=2.0; allowed is in (0.0, 1.0].\nHint: GradScaler(backoff_factor=0.5)",
    ),
    "interval of none": (
        lambda: GradScaler(growth_interval=0),
        amp.ArgumentError,
        "Passed growth_interval=0; allowed is a whole number from 1.\n"
        "Hint: GradScaler(growth_interval=1)",
    ),
    "interval of a fraction": (
        lambda: GradScaler(backoff_interval=1.5),
        amp.ArgumentTypeError,
        "backoff_interval is a whole number, not 1.5 of type float.\nHint: backoff_interval=1",
    ),
    "floor at which 1/scale is infinite": (
        lambda: GradScaler(min_scale=0.0),
        amp.ArgumentError,
        "Passed min_scale=0.0; allowed is at least 2.0**-126.\n"
        "Hint: GradScaler(min_scale=5.960464477539063e-08)",
    ),
    "ceiling under the floor": (
        lambda: GradScaler(1.0, min_scale=4.0, max_scale=2.0),
        amp.ArgumentError,
        "Passed max_scale=2.0; allowed is from min_scale (4.0) to 2.0**127.\n"
        "Hint: GradScaler(max_scale=16777216.0)",
    ),
    "update of nothing": (
        lambda: GradScaler().update(),
        amp.CallOrderError,
        "update() without a step() or unscale() since the last one: nothing was checked.\n"
        "Hint: scaler.step(optimizer); scaler.update()",
    ),
    "question about nothing": (
        lambda: GradScaler().found_inf(object()),
        amp.CallOrderError,
        "found_inf() of an optimizer whose gradients were not checked since update().\n"
        "Hint: scaler.unscale(optimizer) checks them.",
    ),
    "state of nothing known": (
        lambda: GradScaler().load_state_dict({"loss_scale": 1.0}),
        amp.StateError,
        "No known scaler state: its keys are ['loss_scale'].\n"
        "Hint: accepted are GradScaler.state_dict() of ampbridge, torch, paddle, keras.",
    ),
    "state of another kind": (
        lambda: GradScaler().load_state_dict([1.0]),
        amp.StateError,
        "A scaler's state is a dict, not list.\nHint: scaler.state_dict()",
    ),
    "state of another version": (
        lambda: GradScaler().load_state_dict({"version": 99}),
        amp.StateError,
        "Scaler state of version 99; this ampbridge reads version 1.\n"
        "Hint: pip install --upgrade ampbridge",
    ),
    "state with a key too many": (
        lambda: GradScaler().load_state_dict({**GradScaler().state_dict(), "hysteresis": 2}),
        amp.StateError,
        "A scaler state of version 1 has other keys: missing [], unknown ['hysteresis'].\n"
        "Hint: pass GradScaler.state_dict()'s result unchanged.",
    ),
    "state of a collapsed scaler": (
        lambda: GradScaler().load_state_dict({"scale": 0.0, "_growth_tracker": 0}),
        amp.StateError,
        "The state holds an impossible value: {'scale': 0.0}.\n"
        "Hint: start again with GradScaler(); the saved scaler had collapsed.",
    ),
    "state with several scales": (
        lambda: GradScaler().load_state_dict({"scale": [1.0, 2.0], "_growth_tracker": 0}),
        amp.StateError,
        "The state holds an impossible value. scale is one number, not [1.0, 2.0].\nHint: scale=1",
    ),
}


@pytest.mark.parametrize("mistake", [*POLICY_MISTAKES, *SCALER_MISTAKES])
def test_wrong_value(mistake):
    call, kind, text = (POLICY_MISTAKES | SCALER_MISTAKES)[mistake]
    with reads(kind, text):
        call()


@contextmanager
def reads(kind, text):
    """The block raises exactly ``kind``, an AmpBridgeError with a hint, and says ``text``."""
    with pytest.raises(amp.AmpBridgeError) as caught:
        yield
    assert str(caught.value) == text
    assert type(caught.value) is kind
    assert "Hint: " in text.rpartition("\n")[2]


# -- train_step and the scaler's order of calls, on a framework that does not exist


def loss_fn(model, *batch):
    return np.float32(1.0)


@pytest.fixture
def parts(toy):
    model = toy.Model()
    return namedtuple("Parts", "model optimizer")(model, toy.Optimizer(model))


class Schedule:
    """Shaped like a Keras LearningRateSchedule."""

    def __call__(self, step):
        return 0.1

    def get_config(self):
        return {}


STEP_ARGUMENTS = {
    "accumulate": (
        {"accumulate": 0},
        amp.ArgumentError,
        "Passed accumulate=0; allowed is a whole number from 1.\nHint: accumulate=4",
    ),
    "clip_norm": (
        {"clip_norm": -1.0},
        amp.ArgumentError,
        "Passed clip_norm=-1.0; allowed is a positive number or None.\nHint: clip_norm=1.0",
    ),
    "clip_each_norm": (
        {"clip_each_norm": 0},
        amp.ArgumentError,
        "Passed clip_each_norm=0; allowed is a positive number or None.\nHint: clip_each_norm=1.0",
    ),
    "clip_value": (
        {"clip_value": (-1, 1)},
        amp.ArgumentError,
        "Passed clip_value=(-1, 1); allowed is a positive number or None.\nHint: clip_value=1.0",
    ),
    "two ways of clipping": (
        {"clip_norm": 1.0, "clip_value": 0.5},
        amp.ArgumentError,
        "Passed clip_norm=1 and clip_value=0.5; a step clips in one way.\n"
        "Hint: clip_norm=1 alone or clip_value=0.5 alone",
    ),
    "compile": (
        {"compile": "yes"},
        amp.ArgumentError,
        "Passed compile='yes'; allowed are True, False and 'auto'.\nHint: compile='auto'",
    ),
    "scheduler": (
        {"scheduler": 0.1},
        amp.ArgumentTypeError,
        "scheduler is an object with step() or a function, not 0.1.\n"
        "Hint: scheduler=scheduler, which was made with the optimizer, or a function of no arguments.",
    ),
    "a rate schedule": (
        {"scheduler": Schedule()},
        amp.ArgumentTypeError,
        "scheduler is an object with step() or a function, not "
        f"{__name__}.Schedule.\n"
        "Hint: a Keras LearningRateSchedule goes to the optimizer, learning_rate=schedule; it "
        "follows optimizer.iterations, which does not advance on skipped steps.",
    ),
    "on_overflow": (
        {"on_overflow": "skip"},
        amp.ArgumentError,
        "Passed on_overflow='skip'; allowed are 'drop_step' or 'drop_microbatch'.\n"
        "Hint: on_overflow='drop_step'",
    ),
    "a schedule by skips where no step is skipped": (
        {
            "policy": amp.Schedule.when(skips=2, use="O0", otherwise="O1"),
            "on_overflow": "drop_microbatch",
        },
        amp.ArgumentError,
        "on_overflow='drop_microbatch' skips no step, which Schedule.when(use=Policy('O0'), "
        "otherwise=Policy('O1', 'float16'), skips=2, back_after=None) waits for.\n"
        "Hint: on_overflow='drop_step', or a schedule by steps or by the loss.",
    ),
    "another scaler": (
        {"scaler": 1024},
        amp.ArgumentTypeError,
        "scaler is an ampbridge.GradScaler, 'auto' or None, not 1024 (builtins.int).\n"
        "Hint: scaler=amp.GradScaler(1024)",
    ),
    "a layer to keep": (
        {"policy": amp.Policy("O2", keep=["haed"])},
        amp.PolicyError,
        "keep=['haed'] matches no layer of this model. It has body, head; classes ToyLayer."
        "\nHint: did you mean 'head'?",
    ),
    "name_overflows": (
        {"name_overflows": "weight"},
        amp.ArgumentTypeError,
        "name_overflows is True or False, not 'weight'.\nHint: name_overflows=True",
    ),
    "policy": (
        {"policy": 3},
        amp.ArgumentTypeError,
        "A policy is a Policy or a string, not int (3).\n"
        "Hint: policy='O1' or policy=Policy('O1', 'bfloat16')",
    ),
}


@pytest.mark.parametrize("mistake", STEP_ARGUMENTS)
def test_wrong_argument_of_train_step(mistake, parts):
    arguments, kind, text = STEP_ARGUMENTS[mistake]
    with reads(kind, text):
        amp.train_step(loss_fn, parts.model, parts.optimizer, **arguments)


def test_loss_fn_that_is_no_function(parts):
    with reads(
        amp.ArgumentTypeError,
        "loss_fn is a function of (model, *batch), not 3.\n"
        "Hint: def loss_fn(model, x, y): return loss",
    ):
        amp.train_step(3, parts.model, parts.optimizer)


def test_loss_that_is_no_scalar(parts):
    step = amp.train_step(lambda model: np.zeros((4, 2)), parts.model, parts.optimizer)
    with reads(
        amp.ArgumentError,
        "loss_fn returned a loss of shape (4, 2); a scalar is needed.\nHint: return loss.mean()",
    ):
        step()


def test_loss_that_is_nothing(parts):
    step = amp.train_step(lambda model: None, parts.model, parts.optimizer)
    with reads(
        amp.ArgumentTypeError,
        "loss_fn returned NoneType, not a tensor.\n"
        "Hint: def loss_fn(model, x, y): return loss  # or (loss, aux)",
    ):
        step()


class ForeignOptimizer:
    __module__ = "torch.optim.sgd"


class ForeignArray:
    __module__ = "torch"


@pytest.mark.parametrize(
    "call",
    [
        lambda step: step(np.ones(3), ForeignArray()),
        lambda step: step({"x": [ForeignArray()]}),
        lambda step: step(x=ForeignArray()),
    ],
    ids=["plain", "nested", "named"],
)
def test_a_batch_of_another_framework(call, parts):
    def failing(model, *batch, **named):
        raise TypeError

    step = amp.train_step(failing, parts.model, parts.optimizer)
    with reads(
        amp.ArgumentTypeError,
        "Passed an array (torch.ForeignArray) of torch with a model of toyframework.\n"
        "Hint: pass it as a NumPy array, such as x.numpy()",
    ):
        call(step)


@pytest.mark.parametrize(
    "call",
    [
        lambda model, optimizer: amp.train_step(loss_fn, model, optimizer),
        lambda model, optimizer: amp.decorate(model, optimizer),
        lambda model, optimizer: amp.undecorate(model, optimizer),
        lambda model, optimizer: amp.undecorated(model, optimizer).__enter__(),
    ],
    ids=["train_step", "decorate", "undecorate", "undecorated"],
)
def test_model_and_optimizer_of_two_frameworks(call, parts):
    with reads(
        amp.ArgumentTypeError,
        "The model toyframework.nn.ToyModel belongs to toyframework, the optimizer "
        "torch.optim.sgd.ForeignOptimizer to torch.\n"
        "Hint: make the optimizer with toyframework, over the model's own parameters.",
    ):
        call(parts.model, ForeignOptimizer())


@pytest.mark.parametrize("scaler", [None, GradScaler(enabled=False)], ids=["none", "disabled"])
def test_float16_without_a_scaler_warns(scaler, parts):
    with pytest.warns(amp.AmpBridgeWarning) as caught:
        step = amp.train_step(loss_fn, parts.model, parts.optimizer, policy="O1", scaler=scaler)
    assert str(caught[0].message) == (
        "Policy('O1', 'float16') without loss scaling: gradients under 6e-8 become zero.\n"
        "Hint: scaler='auto', or a bfloat16 policy, which needs none."
    )
    assert caught[0].filename == __file__  # it points at the user's line
    assert step().applied


@pytest.mark.parametrize("scaler", [None, "auto", GradScaler(enabled=False)])
def test_bfloat16_without_a_scaler_is_fine(scaler, parts):
    amp.train_step(loss_fn, parts.model, parts.optimizer, policy="O1:bfloat16", scaler=scaler)()


def test_saving_between_micro_batches(parts):
    step = amp.train_step(loss_fn, parts.model, parts.optimizer, accumulate=4)
    step()
    with reads(
        amp.StateError,
        "state_dict() after 1 of 4 micro-batches would lose their gradients.\n"
        "Hint: save when result.reason != 'accumulating'; or step.reset(), which drops them.",
    ):
        step.state_dict()


def saved(parts, **arguments):
    return amp.train_step(loss_fn, parts.model, parts.optimizer, **arguments).state_dict()


def test_loading_the_state_of_another_policy(parts):
    step = amp.train_step(loss_fn, parts.model, parts.optimizer, policy="O1")
    with reads(
        amp.StateError,
        "The state was saved under Policy('O0'), this step runs Policy('O1', 'float16').\n"
        "Hint: amp.train_step(..., policy=Policy('O0')); or amp.load_weights(path, model), which takes the "
        "weights alone.",
    ):
        step.load_state_dict(saved(parts, policy="O0"))


def test_loading_a_state_without_its_scaler(parts):
    step = amp.train_step(
        loss_fn, parts.model, parts.optimizer, policy="O1:bfloat16", scaler=GradScaler()
    )
    with reads(
        amp.StateError,
        "The state has no scaler, this step has a scaler.\n"
        "Hint: make the step with the scaler= it was saved with.",
    ):
        step.load_state_dict(saved(parts, policy="O1:bfloat16"))


def test_loading_something_else(parts):
    step = amp.train_step(loss_fn, parts.model, parts.optimizer)
    with reads(
        amp.StateError,
        "Not a train_step state of version 1: ['weights'].\n"
        "Hint: pass step.state_dict()'s result, keys ['policy', 'scaler', 'schedule', 'step', "
        "'unscaled', 'version'].",
    ):
        step.load_state_dict({"weights": []})


@pytest.fixture
def scaler(toy, parts):
    """A scaler that has scaled a loss, and whose optimizer holds a gradient."""
    parts.optimizer.gradient = np.ones(1, np.float32)
    scaler = GradScaler()
    scaler.scale(toy.array(1.0))
    return scaler


@pytest.mark.parametrize("call", ["step", "unscale"])
def test_a_loss_that_was_never_scaled(scaler, parts, call):
    with reads(
        amp.CallOrderError,
        "These gradients would be divided by a loss scale that this GradScaler has multiplied no loss "
        "by.\nHint: scaler.scale(loss).backward(), before step() and unscale(); or "
        "amp.value_and_grad(..., scaler=scaler)",
    ):
        getattr(GradScaler(), call)(parts.optimizer)


@pytest.mark.parametrize("call", ["step", "unscale"])
def test_no_gradient_at_all(scaler, parts, call):
    parts.optimizer.gradient = None
    with reads(
        amp.CallOrderError,
        "There is not one gradient to unscale: nothing was differentiated since gradients were cleared, "
        "or the loss does not depend on these parameters.\n"
        "Hint: scaler.scale(loss).backward(), before step() and unscale(), with a loss that depends on "
        "them.",
    ):
        getattr(scaler, call)(parts.optimizer)


def test_unscaling_twice(scaler, parts):
    scaler.unscale(parts.optimizer)
    with reads(
        amp.CallOrderError,
        "unscale() of this optimizer after unscale(), since the last update().\n"
        "Hint: call unscale() once an iteration, before step(), and update() at its end; after an "
        "iteration that was cut short, update() alone.",
    ):
        scaler.unscale(parts.optimizer)


def test_unscaling_after_the_step(scaler, parts):
    scaler.step(parts.optimizer)
    with reads(
        amp.CallOrderError,
        "unscale() of this optimizer after step(), since the last update().\n"
        "Hint: call unscale() once an iteration, before step(), and update() at its end; after an "
        "iteration that was cut short, update() alone.",
    ):
        scaler.unscale(parts.optimizer)


def test_stepping_twice(scaler, parts):
    scaler.step(parts.optimizer)
    with reads(
        amp.CallOrderError,
        "step() of this optimizer has been called already since the last update().\n"
        "Hint: scaler.step(optimizer); scaler.update()",
    ):
        scaler.step(parts.optimizer)


def test_unscaling_gradients_twice(scaler, parts):
    _, grads = amp.value_and_grad(loss_fn, parts.model, scaler=scaler)
    grads = scaler.unscale(grads)
    with reads(
        amp.CallOrderError,
        "These gradients have been unscaled already.\n"
        "Hint: grads = scaler.unscale(grads), once; then scaler.step(optimizer, grads).",
    ):
        scaler.unscale(grads)


def test_one_scaler_for_two_frameworks(toy, scaler, parts):
    class Other(toy.Backend):
        name = "otherframework"

    class OtherModel(toy.Model):
        __module__ = "otherframework"

    amp.register_backend("otherframework", Other)
    scaler.step(parts.optimizer)
    with reads(
        amp.ArgumentTypeError,
        "This GradScaler works for toyframework and was given something of otherframework.\n"
        "Hint: other = GradScaler(); other.load_state_dict(scaler.state_dict())",
    ):
        amp.value_and_grad(loss_fn, OtherModel(), scaler=scaler)


def test_loading_a_scale_outside_of_the_bounds_warns():
    scaler = GradScaler()
    with pytest.warns(amp.AmpBridgeWarning) as caught:
        scaler.load_state_dict({"scale": 2.0**30, "_growth_tracker": 7})
    assert str(caught[0].message) == (
        "The loaded scale 1073741824.0 lies outside of this scaler's bounds and becomes 16777216.0.\n"
        "Hint: GradScaler(min_scale=..., max_scale=1073741824.0) keeps it."
    )
    assert scaler.get_scale() == 2.0**24


# -- backends


def test_misspelt_backend():
    with reads(
        amp.BackendNotFoundError,
        f"No backend 'pytorch'; registered are {registry.backend_names()}.\n"
        "Hint: did you mean 'torch'?",
    ):
        amp.backend("pytorch")


class KerasModel:
    """As Keras makes it on JAX: of no framework that has an adapter."""

    __module__ = "keras.src.models"


def test_a_library_on_a_framework_without_an_adapter(toy, monkeypatch):
    monkeypatch.setattr(registry, "names_in_use", lambda: ["toyframework"])

    class OnToy(KerasModel, toy.Model):
        """As Keras makes it on another one."""

    for call in (amp.backend, amp.decorate):
        with reads(
            amp.BackendNotFoundError,
            "keras.src.models.KerasModel runs here on a framework with which no adapter trains it.\n"
            "Hint: KERAS_BACKEND=tensorflow, torch or jax, ahead of `import keras`",
        ):
            call(KerasModel())
    assert amp.backend(OnToy()).name == "toyframework"


def test_framework_that_is_not_installed(toy):
    def factory():
        raise ModuleNotFoundError("No module named 'toyframework'", name="toyframework")

    amp.register_backend("toyframework", factory)
    with reads(
        amp.BackendLoadError,
        "Backend 'toyframework' needs a package that is not installed: toyframework.\n"
        "Hint: pip install 'ampbridge[toyframework]'",
    ):
        amp.backend("toyframework")


def test_backend_that_needs_something_else(toy):
    def factory():
        raise ModuleNotFoundError("No module named 'scipy.special'", name="scipy.special")

    amp.register_backend("toyframework", factory)
    with reads(
        amp.BackendLoadError,
        "Backend 'toyframework' needs a package that is not installed: scipy.special.\n"
        "Hint: pip install scipy",
    ):
        amp.backend("toyframework")


def test_incomplete_backend(toy):
    class Half:
        __module__ = "toybridge"
        name = "toyframework"

    methods = {name for name, _ in inspect.getmembers(amp.Backend, callable) if name[0] != "_"}
    for method in methods - {"clip", "bind"}:
        setattr(Half, method, print)
    amp.register_backend("toyframework", Half)
    with reads(
        amp.BackendLoadError,
        "Backend 'toyframework' (toybridge.test_incomplete_backend.<locals>.Half) lacks "
        "['bind', 'clip'].\nHint: subclass ampbridge.Backend.",
    ):
        amp.backend("toyframework")


def test_two_distributions_of_one_backend(monkeypatch):
    Point = namedtuple("Point", "module value dist")
    Dist = namedtuple("Dist", "name")
    rivals = [Point("a", "a:backend", Dist("one")), Point("b", "b:backend", Dist("two"))]
    monkeypatch.setattr(registry, "_entry_points", lambda: {"jax": rivals})
    with reads(
        amp.BackendLoadError,
        "Several distributions provide backend 'jax': a:backend (from one), b:backend (from two).\n"
        "Hint: uninstall all but one.",
    ):
        amp.backend("jax")


def test_no_framework_in_use():
    """In a process of its own, as this one may have imported an adapter."""
    code = "import ampbridge as amp\nwith amp.autocast('O1'): pass"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.endswith(
        "BackendNotFoundError: Which backend? Of the registered frameworks "
        f"{registry.backend_names()}, this process has imported none.\n"
        "Hint: amp.autocast('O1', backend='torch')\n"
    )


def test_several_frameworks_in_use(toy, monkeypatch):
    monkeypatch.setattr(registry, "backend_names", lambda: ["one", "two"])
    monkeypatch.setitem(sys.modules, "one", sys)
    monkeypatch.setitem(sys.modules, "two", sys)
    with (
        reads(
            amp.BackendNotFoundError,
            "Which backend? Of the registered frameworks ['one', 'two'], this process has imported "
            "several ('one' or 'two').\nHint: amp.autocast('O1', backend='one')",
        ),
        amp.autocast("O1"),
    ):
        pass


@pytest.mark.parametrize(
    "call",
    [
        lambda policy, parts: amp.decorate(parts.model, policy=policy),
        lambda policy, parts: amp.value_and_grad(loss_fn, parts.model, policy=policy),
        lambda policy, parts: amp.autocast(policy, "toyframework").__enter__(),
    ],
    ids=["decorate", "value_and_grad", "autocast"],
)
def test_a_schedule_where_there_are_no_steps(call, parts):
    with reads(
        amp.ArgumentTypeError,
        "Schedule([(0, Policy('O0'))]) chooses a policy for each step, and this call has no "
        "steps.\n"
        "Hint: amp.train_step(..., policy=schedule), or schedule.policy(state) in your own loop.",
    ):
        call(amp.Schedule([(0, "O0")]), parts)


def test_kept_layers(toy):
    with (
        reads(
            amp.UnsupportedError,
            "Policy('O1', 'float16', keep=['head']): a region has no model, so it cannot keep "
            "layers in float32.\nHint: amp.decorate(model, policy=policy), then call the model; or "
            "policy.replace(keep=()) for the region.",
        ),
        amp.autocast(Policy(keep=["head"]), backend="toyframework"),
    ):
        pass


def test_overflows_of_a_step_that_did_not_look(parts):
    with reads(
        amp.CallOrderError,
        "Overflowing parameters were not recorded for this step.\n"
        "Hint: amp.train_step(..., name_overflows=True)",
    ):
        _ = amp.train_step(loss_fn, parts.model, parts.optimizer)().overflows


def test_value_and_grad_at_O2_of_an_undecorated_model(parts):
    with reads(
        amp.CallOrderError,
        "value_and_grad under Policy('O2', 'float16') of a model that is not decorated.\n"
        "Hint: model, optimizer = amp.decorate(model, optimizer, Policy('O2', 'float16'))",
    ):
        amp.value_and_grad(loss_fn, parts.model, policy="O2")


def test_value_and_grad_under_another_policy_than_the_model_s(parts):
    amp.decorate(parts.model, parts.optimizer, "O2")
    with reads(
        amp.CallOrderError,
        "value_and_grad under Policy('O1', 'float16') of a model that is decorated with "
        "Policy('O2', 'float16').\n"
        "Hint: policy=Policy('O2', 'float16'), or amp.undecorate(model, optimizer) before.",
    ):
        amp.value_and_grad(loss_fn, parts.model, policy="O1")


PARAMETER_SETTINGS = {
    "no dtype": (
        ("O2", {"save_dtype": "fp32"}),
        amp.ArgumentError,
        "Passed save_dtype='fp32'; allowed are None, 'float32', 'float16' or 'bfloat16'.\n"
        "Hint: save_dtype='float32'",
    ),
    "a dtype at O0": (
        ("O0", {"save_dtype": "float16"}),
        amp.ArgumentError,
        "save_dtype='float16' at O0, which decorates nothing: a model saves its parameters as they "
        "are.\nHint: save_dtype=None, or a policy of O1 or O2.",
    ),
    "no flag": (
        ("O2", {"master_grad": "x"}),
        amp.ArgumentTypeError,
        "master_grad is True or False, not 'x'.\nHint: master_grad=True",
    ),
    "float32 gradients at O1": (
        ("O1", {"master_grad": True}),
        amp.ArgumentError,
        "master_grad=True at O1, where parameters and their gradients are float32.\n"
        "Hint: master_grad=False, or policy='O2'.",
    ),
}


@pytest.mark.parametrize("mistake", PARAMETER_SETTINGS)
def test_what_is_said_of_parameters(mistake, parts):
    (policy, settings), kind, text = PARAMETER_SETTINGS[mistake]
    with reads(kind, text):
        amp.decorate(parts.model, parts.optimizer, policy, **settings)
    assert parts.model.decorations == [None]
    with reads(kind, text):
        amp.Recipe(policy, **settings)


def test_a_scaler_that_is_none_beside_value_and_grad(parts):
    with reads(
        amp.ArgumentTypeError,
        "scaler is an ampbridge.GradScaler or None, not 'auto' (builtins.str).\n"
        "Hint: scaler = amp.GradScaler()",
    ):
        amp.value_and_grad(loss_fn, parts.model, scaler="auto")


@pytest.mark.parametrize("wrong", [(3, 3), ("jax", 3), ("jax.numpy", int)], ids=str)
def test_a_backend_that_cannot_be_registered(wrong):
    before = amp.backends()
    with reads(
        amp.ArgumentTypeError,
        f"A backend is registered by its framework's root module and a factory, not by {wrong[0]!r} "
        f"and {wrong[1]!r}.\nHint: amp.register_backend('jax', JaxBackend)",
    ):
        amp.register_backend(*wrong)
    assert amp.backends() == before


def test_a_recipe_that_cannot_be_written(tmp_path):
    path = tmp_path / "missing" / "recipe.toml"
    with reads(
        amp.RecipeError,
        f"Cannot write the recipe {str(path)!r}: No such file or directory.\n"
        "Hint: recipe.save('recipe.toml')",
    ):
        amp.Recipe().save(path)


def test_a_failed_load_changes_nothing(parts):
    scaler = GradScaler(1024.0)
    before = scaler.state_dict()
    for broken in ({**before, "growth_factor": 0.1}, {**before, "scale": "big"}, {"version": 7}):
        with pytest.raises(amp.StateError):
            scaler.load_state_dict(broken)
        assert scaler.state_dict() == before


def test_what_messages_and_docstrings_name_exists():
    """But for those of ``port``, whose ``amp`` may be another library's."""
    named = set()
    for path in (
        path for root in ("ampbridge", "backends", "tools") for path in (ROOT / root).rglob("*.py")
    ):
        if "ampbridge_port" not in path.parts:
            named.update(re.findall(r"(?<![\w.])amp((?:\.[A-Za-z_]+)+)", path.read_text("utf-8")))
    assert len(named) > 20
    for name in named:
        attrgetter(name[1:])(amp)
