"""Recipes as modules for Paddle, which has regions with lists, ``decorate`` for O2, and a scaler.

What else a recipe may have is written with ampbridge: lists of others, layers kept in float32 by name,
other rules of a loss scale, micro-batches that are dropped alone, schedules.
"""

from __future__ import annotations

from collections.abc import Collection

from ampbridge.policies.native_lists import paddle_lists, paddle_rules, wanted_rules
from ampbridge.policies.paddle_names import paddle_names
from ampbridge.policies.policy import Policy
from ampbridge.training.recipe import Recipe
from ampbridge_port.writers import Loss, Target, ampbridge, loop
from ampbridge_port.writers.code import (
    ALWAYS,
    Comments,
    commented,
    constants,
    fill,
    laid_out,
    literal,
    program,
)

HEADER = '''\
"""Mixed precision for PaddlePaddle. On CPUs Paddle computes in float32.

    scaler = amp_paddle.scaler()
    for loss in amp_paddle.train(model, optimizer, scaler, loss_fn, batches): ...

Save scaler.state_dict(), too.
"""

$imports

$constants
$workaround
'''

WORKAROUND = """\
# When the scale falls, Paddle 3.3 prints float(scale) of a tensor of shape [1]: an error since NumPy 2.4.
grad_scaler.float = lambda x: x.item() if isinstance(x, paddle.Tensor) else x
"""

GRAD_CLIP = '''\
def grad_clip():
    """For your optimizer: paddle.optimizer.SGD(..., grad_clip=grad_clip())."""
    return paddle.nn.$made
'''

CLIP = {
    "clip_norm": "ClipGradByGlobalNorm(CLIP_NORM)",
    "clip_each_norm": "ClipGradByNorm(CLIP_EACH_NORM)",
    "clip_value": "ClipGradByValue(CLIP_VALUE)",
}

DECORATE = '''\
def decorate(model, optimizer):
    """What O2 makes of both, before the first step."""
    $made
'''

STEP = """\
scaler.step(optimizer)
scaler.update()
optimizer.clear_grad()
"""

OF_SCALER = {
    "init_scale": "init_loss_scaling",
    "growth_factor": "incr_ratio",
    "backoff_factor": "decr_ratio",
    "growth_interval": "incr_every_n_steps",
    "backoff_interval": "decr_every_n_nan_or_inf",
}

MODEL = """\
layers = paddle.nn.Linear(32, 64), paddle.nn.ReLU(), paddle.nn.Linear(64, 8)
model, mse_loss = paddle.nn.Sequential(*layers), paddle.nn.MSELoss()
optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters()$clip)
$decorate
"""


def lacks(recipe: Recipe) -> tuple[str, ...]:
    """What Paddle has no function for; in bfloat16 its scaler switches itself off."""
    off = recipe.scaler is not None and recipe.policy.dtype == "bfloat16"
    found = loop.lacking(recipe, "paddle", takes_lists=_takes_lists(recipe.policy))
    return (*found, *["scaler.enabled"] * off)


def _takes_lists(policy: Policy) -> bool:
    """Whether Paddle's custom lists have all entries of a policy, and move no other op with them."""
    if policy.level == "O0" or policy.lists != "paddle":
        return False
    known = all(map(paddle_names, (*policy.allow, *policy.deny)))
    return known and paddle_rules(policy) == wanted_rules("paddle", policy)


def _native(recipe: Recipe, comments: Comments, with_demo: bool) -> str:
    scaling = recipe.scaler
    numbers = [*ALWAYS, "backoff_interval"] if scaling and scaling.dynamic else ["init_scale"]
    numbers, falls = numbers if scaling else [], len(numbers) > 1
    settings = [f"{OF_SCALER[name]}={name.upper()}" for name in numbers]
    settings += ["use_dynamic_loss_scaling=False"] * bool(scaling and not falls)
    scaler = laid_out("return paddle.amp.GradScaler(", settings or ["enable=False"], column=4)
    precision, arguments = _region(recipe.policy, comments)
    clip = fill(GRAD_CLIP, made=CLIP[recipe.clipping.name]) if recipe.clipping else ""
    decorate = _decorate(recipe) if recipe.policy.level == "O2" else ""
    imports = ["import numpy as np"] * with_demo + ["import paddle"]
    imports += ["from paddle.amp import grad_scaler"] * falls
    head = fill(
        HEADER,
        imports="\n".join(imports),
        constants=precision + constants(recipe, comments, numbers),
        workaround=WORKAROUND if falls else "",
    )
    region = laid_out("with paddle.amp.auto_cast(", arguments, "):", column=8)
    made = fill(
        MODEL,
        clip=", grad_clip=grad_clip()" if clip else "",
        decorate="model, optimizer = decorate(model, optimizer)" if decorate else "",
    )
    return program(
        head,
        clip,
        decorate,
        fill(loop.SCALER, made=scaler),
        loop.train_section(recipe, region, STEP),
        loop.demo(made, "paddle.to_tensor(each)") if with_demo else "",
    )


def _region(policy: Policy, comments: Comments) -> tuple[str, list[str]]:
    """The level, the dtype and the lists as constants, and as arguments of ``auto_cast``."""
    if policy.level == "O0":
        return "", ["enable=False"]
    lines = {"level": f'LEVEL = "{policy.level}"', "dtype": f'DTYPE = "{policy.dtype}"'}
    arguments = ["level=LEVEL", "dtype=DTYPE"]
    lists = paddle_lists(policy) if policy.lists != "native" else None
    for key, name in (("allow", "white"), ("deny", "black")) if lists else ():
        if entries := [literal(entry) for entry in getattr(lists, name)]:
            lines[key] = laid_out(f"{name.upper()}_LIST = {{", entries, "}")
            arguments.append(f"custom_{name}_list={name.upper()}_LIST")
    said = (commented(lines[key], comments.get(f"policy.{key}", "")) for key in lines)
    return "".join(said), arguments


def _decorate(recipe: Recipe) -> str:
    arguments = ["model", "optimizer", "level=LEVEL", "dtype=DTYPE"]
    arguments.append(f"master_weight={recipe.policy.variable_dtype == 'float32'}")
    if recipe.save_dtype is not None:
        arguments.append(f"save_dtype={literal(recipe.save_dtype)}")
    arguments += ["master_grad=True"] * recipe.master_grad
    return fill(DECORATE, made=laid_out("return paddle.amp.decorate(", arguments, column=4))


def _losses(recipe: Recipe, used: Collection[str] | None) -> tuple[Loss, ...]:
    if recipe.policy.level == "O0":
        return ()
    msg = "on CPUs Paddle has no mixed precision: everything is float32 there"
    found = [Loss("policy.level", "changes", msg)]
    if recipe.policy.level == "O2" and not recipe.master_grad:
        msg = f"gradients are added up and unscaled in {recipe.policy.dtype}, without master_grad"
        found.append(Loss("decorate.master_grad", "changes", msg))
    if recipe.policy.masters == "stochastic":
        msg = "Paddle does not round stochastically: small updates are lost"
        found.append(Loss("policy.masters", "changes", msg))
    if recipe.policy.slots != "float32":
        found.append(Loss("policy.slots", "changes", "Paddle's optimizers keep float32 slots"))
    return tuple(found)


def _with_ampbridge(recipe: Recipe, comments: Comments, with_demo: bool) -> str:
    made = fill(MODEL, clip="", decorate="")
    demo = ampbridge.demo(recipe, made, "mse_loss(model(x), y)") if with_demo else ""
    imports = ["import paddle"] if with_demo else []
    return ampbridge.module(
        recipe, comments, "PaddlePaddle", demo, imports=imports, lacks=lacks(recipe)
    )


TARGET = Target(_native, _with_ampbridge, lacks, _losses)
