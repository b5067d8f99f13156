"""Names of other libraries: each is told of, is none of ours, and its hint is code that works."""

import ast
import copy
import inspect
import json
import pickle
import re

import numpy as np
import pytest

import ampbridge as amp
from ampbridge import GradScaler
from ampbridge.adapters.backend import StepOutput
from ampbridge.errors import slips
from ampbridge.errors.foreign_names import (
    CALLS,
    OF_A_LOSS,
    OF_A_POLICY,
    OF_A_RESULT,
    OF_A_SCALER,
    OF_A_STEP,
    OF_THE_MODULE,
    OTHERWISE,
    OURS,
    is_foreign,
)

CASES = [
    *((kind, name) for kind, names in OTHERWISE.items() for name in names),
    *((kind, name) for kind, names in OURS.items() for name in names),
    *((kind, name) for kind in CALLS for name in OF_A_POLICY if is_foreign(kind, name)),
]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_an_argument_of_another_library_s(kind, name):
    function = getattr(amp, kind)
    assert name not in inspect.signature(function).parameters
    with pytest.raises(amp.ArgumentTypeError) as error:
        function(**{name: True})
    first, hint = str(error.value).split("\nHint: ")
    assert first == f"{kind} has no argument {name!r}, which is another library's."
    call = ast.parse(hint.partition(", wh")[0].partition(", and")[0], mode="eval").body
    assert {keyword.arg for keyword in call.keywords} <= set(
        inspect.signature(eval(ast.unparse(call.func), {"amp": amp})).parameters
    )


@pytest.mark.parametrize(
    ("kind", "given", "code"),
    [
        (
            "GradScaler",
            {"init_loss_scaling": 1024, "incr_ratio": 4.0, "incr_every_n_steps": 1000},
            "amp.GradScaler(init_scale=1024, growth_factor=4.0, growth_interval=1000)",
        ),
        ("GradScaler", {"enable": False}, "amp.GradScaler(enabled=False)"),
        ("train_step", {"max_grad_norm": 5.0}, "amp.train_step(..., clip_norm=5.0)"),
        ("train_step", {"dtype": np.float16}, "amp.train_step(..., policy='O1:float16')"),
        ("train_step", {"dtype": "torch.bfloat16"}, "amp.train_step(..., policy='O1:bfloat16')"),
        ("train_step", {"level": "O2"}, "amp.train_step(..., policy='O2')"),
        ("train_step", {"precision": "bf16-mixed"}, "amp.train_step(..., policy='O1:bfloat16')"),
        ("train_step", {"mixed_precision": True}, "amp.train_step(..., policy='O1')"),
        (
            "train_step",
            {"custom_white_list": {"tanh"}, "accumulation_steps": 8},
            "amp.train_step(..., policy=amp.Policy('O1', allow=['tanh']), accumulate=8)",
        ),
        ("train_step", {"lr_scheduler": object()}, "amp.train_step(..., scheduler=...)"),
        ("autocast", {"dtype": "float16", "level": "O2"}, "amp.autocast('O2:float16')"),
        ("autocast", {"dtype": "float32"}, "amp.autocast('O0')"),
        ("decorate", {"dtype": "float16"}, "amp.decorate(model, optimizer, 'O2:float16')"),
        ("decorate", {"level": "O1"}, "amp.decorate(model, optimizer, 'O1')"),
        (
            "decorate",
            {"master_weight": True},
            "amp.decorate(model, optimizer, amp.Policy('O2', masters='float32'))",
        ),
        (
            "decorate",
            {"master_weight": False, "excluded_layers": ["head"]},
            "amp.decorate(model, optimizer, amp.Policy('O2', masters=None, keep=['head']))",
        ),
        ("Policy", {"amp_dtype": "bf16"}, "amp.Policy('O1', 'bfloat16')"),
    ],
    ids=str,
)
def test_what_was_passed_stands_in_the_hint(kind, given, code):
    with pytest.raises(amp.ArgumentTypeError) as error:
        getattr(amp, kind)(**given)
    first, hint = str(error.value).split("\nHint: ")
    assert hint == code
    assert all(repr(name) in first for name in given)


@pytest.mark.parametrize("name", OF_A_SCALER)
def test_a_method_of_another_library_s(name):
    scaler = GradScaler()
    assert not hasattr(scaler, name)
    with pytest.raises(amp.ForeignNameError) as error:
        getattr(scaler, name)
    first, hint = str(error.value).split("\nHint: ")
    assert first == f"GradScaler has no attribute {name!r}, which is another library's."
    names = {node.attr for node in ast.walk(ast.parse(hint)) if isinstance(node, ast.Attribute)}
    assert all(hasattr(scaler, each) or hasattr(scaler.config, each) for each in names)


@pytest.mark.parametrize("name", OF_A_STEP)
def test_a_method_of_another_library_s_step(name):
    assert not hasattr(amp.TrainStep, name)
    with pytest.raises(amp.ForeignNameError) as error:
        getattr(amp.TrainStep.__new__(amp.TrainStep), name)
    first, hint = str(error.value).split("\nHint: ")
    assert first == f"TrainStep has no attribute {name!r}, which is another library's."
    method = re.search(r"step\.?(\w*)\(", hint)
    assert hasattr(amp.TrainStep, method[1] or "__call__")


@pytest.mark.parametrize("name", OF_THE_MODULE)
def test_a_function_of_another_library_s(name):
    assert not hasattr(amp, name)
    with pytest.raises(amp.ForeignNameError) as error:
        getattr(amp, name)
    first, hint = str(error.value).split("\nHint: ")
    assert first == f"module 'ampbridge' has no attribute {name!r}, which is another library's."
    assert all(hasattr(amp, each) for each in re.findall(r"amp\.(\w+)", hint))


@pytest.mark.parametrize("name", OF_A_LOSS)
def test_a_loss_is_a_number(name):
    loss = amp.StepResult(StepOutput(np.float32(1.5), None), 1).loss
    assert loss == 1.5
    assert (repr(loss), json.dumps(loss), type(loss + 0)) == ("1.5", "1.5", float)
    with pytest.raises(amp.ForeignNameError, match=f"result.loss has no attribute '{name}'"):
        getattr(loss, name)


@pytest.mark.parametrize("name", OF_A_RESULT)
def test_what_a_result_is_asked_for_elsewhere(name):
    with pytest.raises(
        amp.ForeignNameError, match=f"StepResult has no attribute '{name}'"
    ) as error:
        getattr(amp.StepResult(StepOutput(np.float32(1.5), None), 1), name)
    ours = re.findall(r"\bresult\.(\w+)", str(error.value))
    assert ours
    assert all(each in vars(amp.StepResult) for each in ours)


KNOWN = ("O0", "O1", "O2", "float16", "bfloat16", "torch", "tensorflow", "clip_norm")


@pytest.mark.parametrize(
    ("word", "meant"),
    {
        "o2": "O2",
        " BFloat16 ": "bfloat16",
        "tensorflw": "tensorflow",
        "tensor": "tensorflow",
        "floa": "float16",
        "bf": None,
        "clipnorm": None,
        "clip_nrom": "clip_norm",
        "O3": None,
        "float64": None,
        "float61": "float16",
        "keras": None,
        "": None,
        16: None,
        np.float16: "float16",
    }.items(),
)
def test_what_is_meant_by_a_word(word, meant):
    assert slips.meant(word, KNOWN, {"clipnorm": "clip_each_norm"}) == meant


def test_known_slips_come_before_spelling():
    assert slips.meant("KERAS", KNOWN, slips.FRAMEWORKS) == "tensorflow"
    assert slips.meant("fp16", KNOWN, slips.DTYPES) == "float16"
    assert slips.meant(16, KNOWN, slips.DTYPES) == "float16"


def test_a_loader_s_pair_in_one_argument(toy):
    def loss_fn(model, x, y, weight=None):
        raise AssertionError

    model = toy.Model()
    step = amp.train_step(loss_fn, model, toy.Optimizer(model), policy="O0")
    for batch in ([1, 2], (1, 2)):
        with pytest.raises(
            amp.ArgumentTypeError, match=r"a \w+ of 2 in one .*\nHint: step\(\*batch"
        ):
            step(batch)
    for batch in (([1, 2, 3],), (), (1, 2, 3, 4)):
        with pytest.raises(
            amp.ArgumentTypeError, match=r"loss_fn\(model, x, y, weight=None\) takes: "
        ):
            step(*batch)
    with pytest.raises(amp.ArgumentTypeError, match=r"Hint: step\(\*\[batch\[name\] for name in"):
        step({"x": 1, "y": 2})


def test_a_name_that_nobody_has():
    with pytest.raises(AttributeError, match=r"no attribute 'scle'.\nHint: help\(GradScaler\)"):
        GradScaler().scle  # noqa: B018


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))]
)
def test_a_scaler_is_copied_as_ever(copied):
    assert copied(GradScaler(8.0)).state_dict() == GradScaler(8.0).state_dict()


@pytest.mark.parametrize("call", [GradScaler, amp.autocast])
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cpu", "gpu"])
def test_a_device_for_the_first_argument(call, device):
    with pytest.raises(amp.ArgumentTypeError, match=rf"takes no device, and '{device}' was passed"):
        call(device)


def test_update_with_a_scale_of_one_s_own():
    scaler = GradScaler(8.0, growth_interval=5)
    scaler.load_state_dict({**scaler.state_dict(), "good_steps": 3})
    scaler.update(512.0)
    assert (scaler.get_scale(), scaler.state_dict()["good_steps"]) == (512.0, 3)
    with pytest.raises(amp.ArgumentError, match="Passed new_scale="):
        scaler.update(2.0**30)
    assert scaler.get_scale() == 512.0


@pytest.mark.parametrize(
    ("scale", "hint"),
    [
        (1e38, r"GradScaler\(9.99.*e\+37, max_scale=9.99.*e\+37\)"),
        (2.0**-40, r"GradScaler\(9.0.*e-13, min_scale=9.0.*e-13\)"),
        (0.0, r"init_scale=2.0\*\*16"),
        (3e38, r"init_scale=2.0\*\*16"),
        (float("nan"), r"init_scale=2.0\*\*16"),
    ],
)
def test_the_hint_for_a_scale_out_of_bounds_works(scale, hint):
    with pytest.raises(amp.ArgumentError, match=rf"Hint: {hint}$") as error:
        GradScaler(scale)
    code = str(error.value).split("Hint: ")[1]
    eval(code if code.startswith("Grad") else f"GradScaler({code})", {"GradScaler": GradScaler})


def test_a_scaling_of_what_is_no_scaler():
    with pytest.raises(amp.ArgumentTypeError, match="GradScaler, not 3"):
        amp.Scaling.of(3)
