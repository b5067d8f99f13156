"""Where modules for Keras differ from a recipe, which casts op by op, by lists; Keras casts layers."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ampbridge.policies import op_table
from ampbridge.policies.policy import Policy
from ampbridge.training.recipe import Recipe, Scaling
from ampbridge_port.writers import Loss
from ampbridge_port.writers.ampbridge import exchanged
from ampbridge_port.writers.tensorflow_scaler import adds_up

FLOAT32_INSIDE = frozenset(
    ("batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm", "sync_batch_norm")
)
"""Keras computes these in float32 under any dtype policy."""


def is_graph_optimizer(policy: Policy) -> bool:
    """Whether it is what TensorFlow's graph optimizer does by itself."""
    own = Policy("O1", "float16", lists="tensorflow")
    return policy.replace(output_dtype="float32", execution="auto") == own


def float32_layers(policy: Policy) -> tuple[str, ...]:
    """The classes in keras.layers of what the recipe's own list denies."""
    names = {
        layer
        for op in ([] if policy.level == "O0" else _not_float32(policy.deny))
        for layer in op_table.op(op).names.get("keras_layers", ())
    }
    return tuple(sorted(names))


def kept(policy: Policy) -> tuple[str, ...]:
    """Names and classes of layers; what is below a layer goes with it."""
    if policy.level == "O0":
        return ()
    return tuple(dict.fromkeys(entry.removesuffix(".*") for entry in policy.keep))


def _not_float32(ops: Collection[str]) -> list[str]:
    """Those that Keras does not run in float32 anyway: it does losses, and normalizations."""
    known = op_table.ops()
    return [
        op for op in ops if op in known and known[op].family != "loss" and op not in FLOAT32_INSIDE
    ]


def lacks(recipe: Recipe) -> tuple[str, ...]:
    """Layers of Keras have one dtype policy for good, which does not say what float32 means."""
    float32 = any(policy.float32 != "default" for policy in recipe.policies)
    return (*["schedule"] * (recipe.schedule is not None), *["policy.float32"] * float32)


def native(recipe: Recipe, used: Collection[str] | None) -> tuple[Loss, ...]:
    """What Keras does otherwise; of ops those that the script names, where that is known."""
    policy = recipe.policy
    found = [*_step_losses(recipe, used), *_saving(recipe)]
    if policy.level != "O0" and not is_graph_optimizer(policy):
        found += _policy_losses(policy, used)
    if policy.execution == "simulated":
        msg = "TensorFlow's own kernels run; low precision is not simulated"
        found.append(Loss("policy.execution", "lost", msg))
    return tuple(found)


def _policy_losses(policy: Policy, used: Collection[str] | None) -> Iterator[Loss]:
    low = policy.dtype
    in_float32 = _float32_by_default(policy)
    called = [op for op in in_float32 if used is not None and op in used]
    if policy.level == "O1" or called or (in_float32 and used is None):
        msg = "Keras casts layer by layer, not op by op"
        names = (op_table.op(op).names.get("keras_layers", ()) for op in called)
        layers = ", ".join(dict.fromkeys(name for each in names for name in each))
        if called:
            msg += f": {', '.join(called)} run in {low}; cast before them" + (
                f', or give {layers} dtype="float32"' if layers else ""
            )
        yield Loss("policy.lists", "changes", msg)
    if denied := ", ".join(_not_float32(policy.deny)):
        msg = f'{denied}: where your own code calls it, write x = ops.cast(x, "float32") before'
        yield Loss("policy.deny", "changes", msg)
    if inside := ", ".join(op for op in policy.allow if op in FLOAT32_INSIDE):
        msg = f"{inside}: Keras computes normalizations in float32, and returns {low}"
        yield Loss("policy.allow", "changes", msg)
    if policy.keep and policy.lists != "tensorflow":
        msg = "these are the source's names: write those of your Keras layers"
        yield Loss("policy.keep", "changes", msg)
    if policy.masters != "float32":
        msg = "Keras' mixed policies have float32 variables: no small update is lost"
        yield Loss("policy.masters", "changes", msg)
    if policy.slots != "float32":
        yield Loss("policy.slots", "changes", "Keras' optimizers keep float32 slots")


def _float32_by_default(policy: Policy) -> list[str]:
    """The ops that the recipe's default lists run in float32, and Keras in low precision."""
    keras_own = policy.lists == "tensorflow" and policy.level == "O2"
    if policy.lists == "native" or keras_own:
        return []
    ops = [op for op in op_table.ops() if policy.category(op) == "deny" and op not in policy.deny]
    return _not_float32(ops)


def _step_losses(recipe: Recipe, used: Collection[str] | None) -> Iterator[Loss]:
    many, scaling = recipe.accumulate, recipe.scaler
    if recipe.clipping and not adds_up(recipe) and "embedding" in (used or ()):
        msg = "an Embedding's gradient is clipped before rows that repeat in a batch are added up"
        yield Loss(f"step.{recipe.clipping.name}", "changes", msg)
    if many > 1 and not adds_up(recipe):
        msg = f"a LearningRateSchedule counts micro-batches: give it {many} times the steps"
        if scaling is not None:
            msg += f"; each loss is scaled before it is divided by {many}, and overflows earlier"
        yield Loss("step.accumulate", "changes", msg)
    if scaling is None:
        return
    for name in ("warn_after_skips", "max_consecutive_skips"):
        if getattr(scaling, name) not in (getattr(Scaling(), name), None):
            yield Loss(f"scaler.{name}", "lost", "Keras does not count skipped steps")
    if scaling.dynamic and scaling.at_min_scale == "raise":
        msg = "an overflow at the smallest scale skips the step, and training goes on"
        yield Loss("scaler.at_min_scale", "lost", msg)


def _saving(recipe: Recipe) -> Iterator[Loss]:
    if recipe.save_dtype not in (None, "float32"):
        msg = f'Keras saves float32: w.astype("{recipe.save_dtype}") for w in model.get_weights()'
        yield Loss("decorate.save_dtype", "lost", msg)


# -- with ampbridge


def with_ampbridge(recipe: Recipe) -> tuple[Loss, ...]:
    """What ampbridge has no lists or files for on TensorFlow."""
    found = [*_saving(recipe)]
    if honoured(recipe) != recipe.replace(save_dtype=honoured(recipe).save_dtype):
        msg = "TensorFlow casts nothing by itself; its graph optimizer's lists are taken"
        found.append(Loss("policy.lists", "changes", msg))
    return tuple(found)


def honoured(recipe: Recipe) -> Recipe:
    """What ampbridge does of a recipe on TensorFlow, which has no lists of its own, and saves float32."""
    if recipe.save_dtype not in (None, "float32"):
        recipe = recipe.replace(save_dtype=None)
    return exchanged(recipe, {("lists", "native"): "tensorflow"})
