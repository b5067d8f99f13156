"""What layers and activations of Keras compute in, by a recipe's op lists.

Keras casts layer by layer, by dtype policies; ampbridge, torch and Paddle cast op by op. So the op
lists become the precision of layers and activations: denied ones compute in float32, others in low
precision, and at O1 those without weights take what arrives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ampbridge.policies import op_table
from ampbridge.policies.policy import Policy
from ampbridge.port.writers import Comments
from ampbridge.port.writers import tensorflow_text as text
from ampbridge.port.writers.code import (
    Group,
    Item,
    constant_words,
    constants,
    fill,
    laid_out,
    literal,
    named,
    program,
    words,
)
from ampbridge.port.writers.loop import precision_names
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


def precision_numbers(recipe: Recipe, comments: Comments) -> str:
    """The constants of it, or the precisions of a schedule; and the global dtype policy."""
    if is_graph_optimizer(recipe):
        return text.GRAPH_OPTIMIZER
    if is_uniform(recipe):
        return text.FLOAT32_POLICY
    if recipe.schedule is not None:
        precision = fill(text.PRECISION, precisions=_precisions(recipe))
        policy = literal(_dtype_policy(recipe.policy))
        return program(fill(text.DTYPE_POLICY, policy=policy), precision)
    level = comments.get("policy.level", "") or comments.get("policy.dtype", "")
    policy = constants({"DTYPE_POLICY": (literal(_dtype_policy(recipe.policy)), level)})
    named_groups = "".join(
        f"{constant_words(name.upper(), group)}\n"
        for name, group in _groups(recipe.policy).items()
        if group
    )
    return policy + named_groups + fill(text.DTYPE_POLICY, policy="DTYPE_POLICY")


def precision_section(recipe: Recipe) -> str:
    """What sets it layer by layer."""
    if is_uniform(recipe):
        return text.CAST
    policies, scheduled = recipe.policies, recipe.schedule is not None

    def value(name: str) -> str:
        return f"precision.{name}" if scheduled else name.upper()

    has = {name: any(_groups(policy)[name] for policy in policies) for name in GROUPS}
    follows = any(policy.level == "O1" for policy in policies)
    functions = value("float32_functions") if has["float32_functions"] else ""
    activations = any(_float32_activations(each) for each in policies if each.level != "O0")
    argument = ", precision" if scheduled else ""
    denied = ["is_a(layer, {})".format(value("float32_layers"))] * has["float32_layers"]
    denied += ["is_named(layer, {})".format(value("kept"))] * has["kept"]
    set_precision = fill(
        text.SET_PRECISION,
        parameter=argument,
        dtype_policy=value("dtype_policy"),
        autocast=f"not follows(layer{argument})" if follows else "True",
        activation=_activation(scheduled, functions) if activations else "",
        warn=fill(text.WARN, float32_functions=functions) if functions else "",
        parts=_parts(fill(text.TOGETHER, argument=argument) if follows else "", denied),
        check_kept=fill(text.CHECK_KEPT, kept=value("kept")) if has["kept"] else "",
    )
    but_low = f" and not is_a(layer, {value('low_layers')})" if has["low_layers"] else ""
    early = "if not precision.follow:\n    return False" if scheduled else ""
    follows_section = fill(text.FOLLOWS, parameter=argument, early=early, but_low=but_low)
    return program(
        set_precision,
        follows_section if follows else "",
        text.LAYERS,
        text.IS_A if has["float32_layers"] or has["low_layers"] else "",
        text.IS_OF_KERAS if follows or functions else "",
        text.CALLED if functions else "",
        text.IS_NAMED if has["kept"] else "",
        text.IN_FLOAT32 if activations else "",
        text.CAST,
    )


def _parts(together: str, denied: Sequence[str]) -> str:
    """What goes for layers with all that they are made of."""
    if not together and not denied:
        return ""
    in_float32 = fill(text.DENIED, denied=" or ".join(denied)) if denied else ""
    return fill(text.PARTS, together=together, denied=in_float32)


def _activation(scheduled: bool, functions: str) -> str:
    """A schedule also takes activations back out of float32."""
    template = text.CHANGING_ACTIVATION if scheduled else text.ACTIVATION
    return fill(template, float32_functions=functions)


GROUPS = ("low_layers", "float32_layers", "float32_functions", "kept")


def _groups(policy: Policy) -> Mapping[str, Sequence[str]]:
    """Names of layers and functions that do not go by the dtype policy alone."""
    if policy.level == "O0":
        return dict.fromkeys(GROUPS, ())
    functions = {*_float32_activations(policy), *_float32_functions(policy)}
    groups = (_low_layers(policy), _float32_layers(policy), sorted(functions), policy.keep)
    return dict(zip(GROUPS, groups, strict=True))


def _precisions(recipe: Recipe) -> str:
    return "\n".join(
        _precision(name, policy, recipe.scaler is not None and policy.needs_scaling)
        for policy, name in precision_names(recipe).items()
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


def _low_layers(policy: Policy) -> list[str]:
    """At O1, the classes of layers that have no weights and compute in low precision all the same."""
    if policy.level == "O2":
        return []
    rules = listed(policy).native_rules("keras_layers")
    return sorted({name for name, rule in rules.items() if rule == "allow"} - WITH_WEIGHTS)


def _float32_functions(policy: Policy) -> set[str]:
    """Functions of ``keras.ops``; those of losses get float32 in any case."""
    owners = op_table.native_names("keras_ops")
    denied = [
        name for name, rule in listed(policy).native_rules("keras_ops").items() if rule == "deny"
    ]
    functions = [name for name in denied if op_table.op(owners[name][0]).family != "loss"]
    return {name.rpartition(".")[2] for name in functions} - {"cast"}


def _float32_activations(policy: Policy) -> list[str]:
    policy = listed(policy)
    return sorted(name for op, name in ACTIVATIONS.items() if policy.category(op) == "deny")


def _precision(name: str, policy: Policy, scales_loss: bool) -> str:
    """``name = Precision(...)`` of one policy; what is as usual is left out."""
    arguments: list[Item] = [literal(_dtype_policy(policy))]
    arguments += [words(name, group) for name, group in _groups(policy).items() if group]
    arguments += [named("follow", True)] if policy.level == "O1" else []
    arguments += [named("scales_loss", True)] if scales_loss else []
    return laid_out(Group(f"{name} = Precision(", tuple(arguments)))


def _dtype_policy(policy: Policy) -> str:
    """The name of Keras' dtype policy: low precision with float32 variables."""
    return "float32" if policy.level == "O0" else f"mixed_{policy.dtype}"
