"""What layers and activations of Keras compute in, by a recipe's op lists.

Keras casts layer by layer, by dtype policies; ampbridge, torch and Paddle cast op by op. So the op
lists become the precision of layers and activations: denied ones compute in float32, others in low
precision, and at O1 those without weights take what arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ampbridge.policies import op_table
from ampbridge.policies.policy import Policy
from ampbridge.training.recipe import Recipe
from ampbridge_port.writers import Comments
from ampbridge_port.writers import tensorflow_text as text
from ampbridge_port.writers.code import (
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
from ampbridge_port.writers.loop import precision_names

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

# Layers whose class is called otherwise than its name in keras.layers.
CLASSES = {"GroupQueryAttention": "GroupedQueryAttention"}

# Keras computes these in float32 under any dtype policy; what they return is in its low precision.
FLOAT32_INSIDE = frozenset(
    ("batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm", "sync_batch_norm")
)

# Of the layers that lists deny, those that lose no more than digits of their output under a low policy.
LOW_OUTPUT = ("Embedding", "GroupNormalization", "LayerNormalization", "RMSNormalization")

# Layers that are products around a softmax which runs in the layer's own precision; it is in float32
# within MultiHeadAttention and GroupedQueryAttention. (Keras 3.15.1; AdditiveAttention is an Attention.)
AROUND_SOFTMAX = frozenset(("Attention",))

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
        global_policy = _low_output_constant(recipe) + fill(text.DTYPE_POLICY, policy=policy)
        return program(global_policy, precision)
    level = comments.get("policy.level", "") or comments.get("policy.dtype", "")
    policy = constants({"DTYPE_POLICY": (literal(_dtype_policy(recipe.policy)), level)})
    named_groups = "".join(
        f"{constant_words(name.upper(), group)}\n"
        for name, group in _groups(recipe.policy).items()
        if group
    )
    named_groups += _low_output_constant(recipe)
    return policy + named_groups + fill(text.DTYPE_POLICY, policy="DTYPE_POLICY")


def precision_section(recipe: Recipe) -> str:
    """What sets it layer by layer; and the casts of what a model returns."""
    output_dtype = recipe.policy.output_dtype
    casts = [text.FLOAT32]
    casts += [fill(text.OUTPUT, dtype=output_dtype)] if output_dtype != "float32" else []
    if is_uniform(recipe):
        return program(*casts)
    has = {name: any(_groups(each)[name] for each in recipe.policies) for name in GROUPS}
    scheduled, activations = recipe.schedule is not None, _wraps_activations(recipe)
    argument = ", precision" if scheduled else ""
    found = "found = " if has["kept"] else ""
    kept = fill(text.CHECK_KEPT, kept=_value(recipe, "kept")) if has["kept"] else ""
    set_precision = fill(
        text.SET_PRECISION,
        parameter=argument,
        set_model=f"{found}set_layer(model{argument})",
        check_kept=kept,
    )
    in_float32 = text.CHANGING_IN_FLOAT32 if scheduled else text.IN_FLOAT32
    return program(
        set_precision,
        _set_layer(recipe, has),
        text.CALLED if has["float32_functions"] else "",
        text.MATCHING if has["kept"] else "",
        in_float32 if activations else "",
        *casts,
    )


def _value(recipe: Recipe, name: str) -> str:
    """Where the code has one of ``GROUPS``, or the dtype policy."""
    return name.upper() if recipe.schedule is None else f"precision.{name}"


def _wraps_activations(recipe: Recipe) -> bool:
    return any(_float32_activations(each) for each in recipe.policies if each.level != "O0")


def _set_layer(recipe: Recipe, has: Mapping[str, bool]) -> str:
    scheduled, policy = recipe.schedule is not None, _value(recipe, "dtype_policy")
    functions = _value(recipe, "float32_functions")
    follows = any(each.level == "O1" for each in recipe.policies)
    activation = text.CHANGING_ACTIVATION if scheduled else text.ACTIVATION
    warn = fill(text.WARN, float32_functions=functions) if has["float32_functions"] else ""
    named_layers = has["float32_layers"] or (follows and has["low_layers"])
    own = bool(low_output(recipe.policies)) or _wraps_activations(recipe)
    argument = ", precision" if scheduled else ""
    return fill(
        text.SET_LAYER,
        parameter=argument,
        own_parameter=", own=False" if own else "",
        names=text.NAMES if named_layers else "",
        of_keras=text.OF_KERAS if follows or own else "",
        own=text.OWN if own else "",
        found=f"found = matching(layer, {_value(recipe, 'kept')})" if has["kept"] else "",
        follows=_follows(recipe, has) if follows else "",
        within=_within(recipe, has, follows),
        dtype_policy=policy,
        autocast="within is not None or not follows" if follows else "True",
        activation=fill(activation, float32_functions=functions)
        if _wraps_activations(recipe)
        else "",
        warn=warn,
        set_part=("found += " if has["kept"] else "")
        + f"set_layer(part{argument}, within{', own' * own})",
        return_found="return found" if has["kept"] else "",
    )


def low_output(policies: Iterable[Policy]) -> list[str]:
    """Denied layers that return low precision where code of the model's own may add it up with others."""
    denied = {name for policy in policies for name in _groups(policy)["float32_layers"]}
    return [name for name in LOW_OUTPUT if name in denied]


def _low_output_constant(recipe: Recipe) -> str:
    names = low_output(recipe.policies)
    return f"{constant_words('LOW_OUTPUT', names)}\n" if names else ""


def _follows(recipe: Recipe, has: Mapping[str, bool]) -> str:
    """Whether a layer takes values as they arrive: a model, or a layer of Keras without weights."""
    lines = text.FOLLOWS
    if has["low_layers"]:
        low = _value(recipe, "low_layers")
        lines += f"follows = follows and not names.intersection({low})\n"
    return lines + ("follows = precision.follow and follows\n" if recipe.schedule else "")


def _within(recipe: Recipe, has: Mapping[str, bool], follows: bool) -> str:
    """In what the parts of a layer compute that go with it."""
    template = text.DENIED_BUT_LOW_OUTPUT if low_output(recipe.policies) else text.DENIED_LAYERS
    layers = fill(template, float32_layers=_value(recipe, "float32_layers"))
    layers = layers if has["float32_layers"] else ""
    denied = " or ".join(["found"] * has["kept"] + ["denied"] * has["float32_layers"])
    lines = fill(text.DENIED, layers=layers, denied=denied) if denied else ""
    if not follows:
        return lines
    otherwise = "elif" if denied else "if"
    policy = _value(recipe, "dtype_policy")
    return lines + fill(text.ONE_OP, otherwise=otherwise, dtype_policy=policy)


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
    if listed(policy).category("softmax") == "deny":
        denied |= AROUND_SOFTMAX
    return sorted(CLASSES.get(name, name) for name in denied)


def _low_layers(policy: Policy) -> list[str]:
    """At O1, the classes of layers that have no weights and compute in low precision all the same."""
    if policy.level == "O2":
        return []
    rules = listed(policy).native_rules("keras_layers")
    allowed = {name for name, rule in rules.items() if rule == "allow"}
    return sorted(allowed - WITH_WEIGHTS - {*_float32_layers(policy)})


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
