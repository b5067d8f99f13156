"""AMP calls that no single call of ampbridge's takes the place of: the lines to write instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from ampbridge_port.reader.dialects import jax
from ampbridge_port.reader.dialects.calls import Call
from ampbridge_port.reader.dialects.torch import TORCHAO
from ampbridge_port.rewriters.expressions import NoReplacement, Replacement, literal, text

TRAIN_STEP = (
    "write the recipe with --to toml, and the loop with ampbridge.train_step(..., recipe=recipe)"
)


def instead(how: Callable[[Call], str | None], call: Call) -> None:
    """Leave the call, and say what to write; nothing, where ``how`` has nothing to say."""
    hint = how(call)
    if hint is not None:
        raise NoReplacement(call, "no single call of ampbridge's replaces it", hint)


def _always(hint: str) -> Callable[[Call], str]:
    return lambda call: hint


def _training_arguments(call: Call) -> str | None:
    on = [name for name in ("fp16", "bf16") if text(call, name) not in (None, "False")]
    on = on or (["fp16"] if call.unpacked else [])
    policy = '"O1"' if on == ["fp16"] else '"O1:bfloat16"'
    trainer = f"ampbridge_torch.transformers.Trainer(..., policy={policy})"
    return f"take {on[0]} out, and {trainer}." if on else None


def _nlp_arguments(call: Call) -> str | None:
    return TRAIN_STEP if _training_arguments(call) else None


def _environment(call: Call) -> str | None:
    named = "TF_ENABLE_AUTO_MIXED_PRECISION" in call.place_of("key").text
    return "take it out; " + TRAIN_STEP if named else None


def _fleet(call: Call) -> str | None:
    return TRAIN_STEP if literal(text(call, "value")) is not False else None


def _by_chance(call: Call) -> str | None:
    if text(call, "bf16_stochastic_round") in (None, "False"):
        return None
    policy = "ampbridge.Policy('O2', 'bfloat16', masters='stochastic', slots='bfloat16')"
    return f"one of torch.optim's, and ampbridge.decorate(model, optimizer, {policy})."


def _layer(call: Call) -> str | None:
    passed = {"dtype", "param_dtype"} & {*call.arguments, *call.extra}
    return f"take {' and '.join(sorted(passed))} out; {_JAX}" if passed else None


def _cast(call: Call) -> str:
    return f"{call.place_of('x').text}: the step's policy casts."


_JAX = (
    "write the recipe with --to toml, and ampbridge.train_step(loss_fn, model, optimizer, recipe=recipe) "
    "in the place of value_and_grad and update; clipping and MultiSteps, which the recipe has, go out of "
    "the optimizer; ampbridge_jax.Stateful is a model of parameters alone"
)
_FSDP = _always("fully_shard (FSDP2), with which ampbridge.GradScaler works")
_CAST = _always("ampbridge.decorate(model, optimizer, ampbridge.Policy('O2', masters=None))")
_SET = _always("with ampbridge.autocast('O1'): around what is to run so")

# Qualified name -> what to write; None where the call has nothing of mixed precision.
HOW: Mapping[str, Callable[[Call], str | None]] = {
    "transformers.TrainingArguments": _training_arguments,
    "paddlenlp.trainer.TrainingArguments": _nlp_arguments,
    "paddle.distributed.fleet.DistributedStrategy.amp": _fleet,
    **dict.fromkeys(("os.environ.__setitem__", "os.environ.setdefault", "os.putenv"), _environment),
    **dict.fromkeys(TORCHAO, _by_chance),
    "torch.set_autocast_enabled": _SET,
    **{f"torch.set_autocast_{of}dtype": _SET for of in ("", "gpu_", "cpu_")},
    "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler": _FSDP,
    "torch.distributed.fsdp.MixedPrecision": _FSDP,
    **{
        name: _layer if name in jax.LAYERS else _cast if ".cast_to_" in name else _always(_JAX)
        for name in jax.CALLS
        if not name.startswith(("jax.", "optax."))
    },
    **dict.fromkeys(("torch.nn.Module.half", "torch.nn.Module.bfloat16"), _CAST),
}

REPLACEMENTS: Mapping[str, Replacement] = {name: partial(instead, how) for name, how in HOW.items()}

anything_else: Replacement = partial(instead, _always(TRAIN_STEP))
"""A call of mixed precision that nothing here knows how to write otherwise."""
