"""What layers and activations of Keras compute in, by a recipe's op lists.

Keras casts layer by layer, by dtype policies; ampbridge, torch and Paddle cast op by op. So the op
lists become the precision of layers and activations: denied ones compute in float32, others in low
precision, and at O1 those without weights take what arrives.
"""

from __future__ import annotations

from ampbridge.policies.policy import Policy
from ampbridge.port.writers import tensorflow_text as text
from ampbridge.port.writers.code import (
    Group,
    Item,
    fill,
    laid_out,
    literal,
    named,
    program,
    words,
)
from ampbridge.port.writers.loop import precision_names, schedule_section
from ampbridge.training.recipe import Recipe

# Layers that hold weights. At O1 weights are float32, and an op that takes the widest of its inputs is
# float32 with them; batch normalization goes by its input alone, in torch and in Paddle.
WITH_WEIGHTS = frozenset(
    (
        *("Conv1D", "Conv2D", "Conv3D", "Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"),
        *("DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D", "SeparableConv2D"),
        *("ConvLSTM2D", "GRU", "GRUCell", "LSTM", "LSTMCell", "SimpleRNN", "SimpleRNNCell"),
        *("Dense", "EinsumDense", "Embedding", "GroupQueryAttention", "MultiHeadAttention"),
        *("GroupNormalization", "LayerNormalization", "RMSNormalization", "PReLU"),
    )
)

# Functions of keras.activations, by the canonical name of their op.
ACTIVATIONS = {
    **{
        name: name
        for name in (
            "celu", "elu", "gelu", "glu", "hard_shrink", "hard_sigmoid", "hard_tanh", "leaky_relu",
            "log_sigmoid", "log_softmax", "relu", "relu6", "selu", "sigmoid", "silu", "soft_shrink",
            "softmax", "softplus", "softsign", "tanh", "tanh_shrink", "threshold",
        )
    },
    "hard_swish": "hard_silu",
    "exp": "exponential",
}  # fmt: skip


def is_graph_optimizer(recipe: Recipe) -> bool:
    """Whether it is what TensorFlow's graph optimizer does by itself."""
    plain = Policy("O1", "float16", lists="tensorflow", output_dtype=recipe.policy.output_dtype)
    return recipe.schedule is None and recipe.policy == plain


def is_uniform(recipe: Recipe) -> bool:
    """Whether all layers compute in one precision by themselves: nothing is to be set layer by layer."""
    plain = recipe.schedule is None and recipe.policy.level == "O0"
    return plain or is_graph_optimizer(recipe)


def precision_section(recipe: Recipe) -> str:
    """The part of the program that sets it, and what changes it by a schedule."""
    if is_uniform(recipe):
        switch = text.GRAPH_OPTIMIZER if is_graph_optimizer(recipe) else text.FLOAT32_POLICY
        return program(switch, text.CAST)
    precision = fill(
        text.PRECISION,
        dtype=recipe.policy.dtype,
        policy=literal(_dtype_policy(recipe.policy)),
        scaling_field=text.SCALING_FIELD if recipe.schedule else "",
        precisions=_precisions(recipe),
    )
    return program(precision, schedule_section(recipe), text.SET_PRECISION, text.CAST)


def _precisions(recipe: Recipe) -> str:
    names = precision_names(recipe)
    if recipe.schedule is None:
        return _precision(names[recipe.policy], recipe.policy, None)
    scales = recipe.scaler is not None
    return "\n".join(
        _precision(name, policy, scales and policy.needs_scaling) for policy, name in names.items()
    )


def listed(policy: Policy) -> Policy:
    """The policy with op lists; TensorFlow has none but those of its graph optimizer."""
    return policy.replace(lists="tensorflow") if policy.lists == "native" else policy


def _float32_layers(policy: Policy) -> list[str]:
    """The classes of layers that compute in float32."""
    rules = listed(policy).native_rules("keras_layers")
    denied = {name for name, rule in rules.items() if rule == "deny"}
    if policy.level == "O1":
        promoted = {name for name, rule in rules.items() if rule == "promote"}
        denied |= promoted & WITH_WEIGHTS
    return sorted(denied)


def _following_layers(policy: Policy) -> list[str]:
    """The classes of layers that take the precision that arrives: at O1, those without weights."""
    if policy.level == "O2":
        return []
    rules = listed(policy).native_rules("keras_layers")
    promoted = {name for name, rule in rules.items() if rule == "promote"}
    return sorted({"Model", *promoted} - WITH_WEIGHTS - {"BatchNormalization"})


def _float32_activations(policy: Policy) -> list[str]:
    policy = listed(policy)
    return sorted(name for op, name in ACTIVATIONS.items() if policy.category(op) == "deny")


def _precision(name: str, policy: Policy, scales_loss: bool | None) -> str:
    """``name = Precision(...)`` of one policy."""
    arguments: list[Item] = [literal(_dtype_policy(policy))]
    if policy.level != "O0":
        groups = {
            "float32_layers": _float32_layers(policy),
            "following_layers": _following_layers(policy),
            "float32_activations": _float32_activations(policy),
        }
        arguments += [words(name, group) for name, group in groups.items() if group]
        arguments += [named("kept", policy.keep)] if policy.keep else []
    if scales_loss is not None:
        arguments.append(named("scales_loss", scales_loss))
    return laid_out(Group(f"{name} = Precision(", tuple(arguments)))


def _dtype_policy(policy: Policy) -> str:
    """The name of Keras' dtype policy: low precision with float32 variables."""
    return "float32" if policy.level == "O0" else f"mixed_{policy.dtype}"
