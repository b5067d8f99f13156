"""What to add by hand to written code, for each setting that it changes or loses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ampbridge.training.recipe import Recipe
from ampbridge_port.writers import Loss


class _Case(NamedTuple):
    """A line for losses of a key whose message has ``says``; ``{low}`` is the low dtype in it."""

    says: str
    line: str | Callable[[Recipe], str]


def line_by_hand(loss: Loss, recipe: Recipe, target: str) -> str:
    """The line that keeps what ``target``'s code changes or loses; "" if none does."""
    for case in _LINES.get(target, {}).get(loss.key, ()):
        if case.says in loss.message:
            line = case.line if isinstance(case.line, str) else case.line(recipe)
            return line.replace("{low}", _low(recipe)).replace("{saved}", str(recipe.save_dtype))
    return ""


def _low(recipe: Recipe) -> str:
    return next((p.dtype for p in recipe.policies if p.level != "O0"), "float16")


def _listed(key: str, cast: str) -> Callable[[Recipe], str]:
    """A cast before the ops that a recipe lists."""

    def line(recipe: Recipe) -> str:
        ops = dict.fromkeys(op for policy in recipe.policies for op in getattr(policy, key))
        return f"{cast}  # before {', '.join(ops)} in your code, where the report names it"

    return line


def _share(recipe: Recipe) -> str:
    scale = 1.0 if recipe.scaler is None else recipe.scaler.init_scale
    return f"INIT_SCALE = {scale / recipe.accumulate!r}  # the scale of a micro-batch's share"


def _with_ampbridge(recipe: Recipe) -> str:
    policy = next(policy for policy in recipe.policies if policy.execution == "simulated")
    return f"with ampbridge.autocast({str(policy)!r}):  # --ampbridge writes code that simulates"


_SIMULATED = (_Case("", _with_ampbridge),)

_LINES: Mapping[str, Mapping[str, tuple[_Case, ...]]] = {
    "tensorflow": {
        "policy.level": (
            _Case("", 'x = keras.ops.cast(x, "float32")  # before denied functions in your layers'),
        ),
        "policy.lists": (
            _Case("casts nothing", 'lists = "tensorflow"  # in the recipe, which then says so'),
            _Case("", 'x = keras.ops.cast(x, "float32")  # before denied functions in your layers'),
        ),
        "policy.allow": (_Case("", _listed("allow", 'x = keras.ops.cast(x, "{low}")')),),
        "policy.deny": (_Case("", _listed("deny", 'x = keras.ops.cast(x, "float32")')),),
        "policy.keep": (
            _Case("", 'model.get_layer("NAME").dtype_policy = "float32"  # for one not matched'),
        ),
        "policy.master_weights": (
            _Case(
                "",
                'v.assign(keras.ops.cast(keras.ops.cast(v, "{low}"), "float32"))  # after a step, '
                "v of model.trainable_variables",
            ),
        ),
        "policy.execution": _SIMULATED,
        "policy.output_dtype": (
            _Case("", 'y = keras.ops.cast(model(x), "{low}")  # under a policy that returns it'),
        ),
        "decorate.save_dtype": (
            _Case(
                "", 'np.savez("weights.npz", *(w.astype("{saved}") for w in model.get_weights()))'
            ),
        ),
        "step.accumulate": (_Case("", _share),),
        "scaler.at_min_scale": (_Case("", "model.compile(optimizer, loss, jit_compile=False)"),),
    },
    "torch": {
        "policy.lists": (
            _Case("on CPUs", "x = x.float()  # on CPUs, before softmax, layer_norm or sum"),
            _Case(
                "within another function",
                "with torch.autocast(x.device.type, enabled=False):  # around attention(x.float(), ...)",
            ),
            _Case("", "x = x.float()  # before functions that are in no op table"),
        ),
        "policy.allow": (_Case("", _listed("allow", "x = x.to(torch.{low})")),),
        "policy.deny": (_Case("", _listed("deny", "x = x.float()")),),
        "policy.master_weights": (
            _Case("", "model.to(torch.{low})  # before the optimizer is made, to save memory"),
        ),
        "policy.execution": _SIMULATED,
        "decorate.save_dtype": (
            _Case(
                "", "torch.save({k: v.to(torch.{saved}) for k, v in model.state_dict().items()}, f)"
            ),
        ),
    },
    "paddle": {
        "policy.level": (
            _Case("on CPUs", 'paddle.set_device("gpu")'),
            _Case(
                "normalizations",
                "excluded_layers=[nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm2D]  # in decorate",
            ),
            _Case("", 'x = x.astype("{low}")  # before ops that are on no list'),
        ),
        "policy.lists": (
            _Case("", 'x = x.astype("float32")  # before those that the recipe runs in float32'),
        ),
        "policy.allow": (_Case("", _listed("allow", 'x = x.astype("{low}")')),),
        "policy.deny": (_Case("", _listed("deny", 'x = x.astype("float32")')),),
        "policy.master_weights": (
            _Case(
                "",
                'p.set_value(p.astype("{low}").astype("float32"))  # after a step, p of '
                "model.parameters()",
            ),
        ),
        "policy.execution": _SIMULATED,
        "decorate.master_grad": (
            _Case("", "--set decorate.master_grad=true  # when it is ported"),
        ),
        "decorate.save_dtype": (
            _Case(
                "",
                'paddle.save({k: v.astype("{saved}") for k, v in model.state_dict().items()}, f)',
            ),
        ),
    },
}
