"""What is meant by a word that is none of the allowed ones: by tables of known slips.

A hint says what was meant, or nothing of the kind: names that are spelt alike may mean the opposite.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

NONE: Mapping[str, str] = MappingProxyType({})

DTYPES = {
    **dict.fromkeys(("16", "fp16", "f16", "half", "mixed_float16", "torch.float16"), "float16"),
    **dict.fromkeys(("bf16", "bfloat", "brain", "mixed_bfloat16", "torch.bfloat16"), "bfloat16"),
    **dict.fromkeys(("32", "fp32", "f32", "float", "single", "torch.float32"), "float32"),
}

MASTERS = {
    **dict.fromkeys(("true", "on", "32", "fp32", "f32", "float", "single"), "float32"),
    **dict.fromkeys(("false", "no", "off"), "none"),
    **dict.fromkeys(("sr", "stochastic_rounding"), "stochastic"),
}

SLOTS = {
    **DTYPES,
    **dict.fromkeys(("16", "fp16", "f16", "half", "float16"), "bfloat16"),  # the one in 16 bits
    **dict.fromkeys(("true", "on", "sr", "stochastic", "stochastic_rounding"), "bfloat16"),
    **dict.fromkeys(("none", "false", "no", "off"), "float32"),
}

FLOAT32S = {
    **dict.fromkeys(("highest", "float32", "fp32", "f32", "false", "off"), "ieee"),
    **dict.fromkeys(("high", "tensorfloat32", "tensorfloat-32", "true", "on"), "tf32"),
    **dict.fromkeys(("none", "auto"), "default"),
}

LEVELS = {"0": "O0", "1": "O1", "2": "O2", "00": "O0", "01": "O1", "02": "O2"}

FRAMEWORKS = {
    **dict.fromkeys(("pytorch", "pt"), "torch"),
    **dict.fromkeys(("keras", "tf", "tf.keras"), "tensorflow"),
    **dict.fromkeys(("paddlepaddle", "pp"), "paddle"),
    **dict.fromkeys(("np", "autograd"), "numpy"),
    **dict.fromkeys(("flax", "nnx", "flax.nnx", "optax", "jnp", "jax.numpy"), "jax"),
}

LIST_SETS = {**FRAMEWORKS, "cuda": "torch", "apex": "torch", "grappler": "tensorflow"}

PRESETS = {
    **FRAMEWORKS,
    **dict.fromkeys(("tensorflow", "tf", "tf.keras"), "keras"),
    **dict.fromkeys(("fleet", "paddle.fleet"), "paddle_fleet"),
    **dict.fromkeys(("megatron-lm", "megatron_lm"), "megatron"),
    "nvidia": "apex",
}

OPTIMIZERS = dict.fromkeys(("adamax", "nadam", "radam", "adagrad", "rmsprop", "lamb"), "")
"""Words for something else, that is not here: nothing of a like spelling is meant."""

FIELDS = {
    **dict.fromkeys(("kahan", "stochastic"), "masters"),
    **dict.fromkeys(("ieee", "tf32"), "float32"),
    **dict.fromkeys(("torch", "paddle", "tensorflow", "safe"), "lists"),
    **dict.fromkeys(("o0", "o1", "o2"), "policy"),
    "simulated": "execution",
}
"""Words that one argument alone takes."""

KEYS = {
    **dict.fromkeys(("opt_level", "amp_level", "lvl"), "level"),
    **dict.fromkeys(("amp_dtype", "compute_dtype", "half_dtype"), "dtype"),
    **dict.fromkeys(("custom_white_list", "white_list", "whitelist", "allowed"), "allow"),
    **dict.fromkeys(("custom_black_list", "black_list", "blacklist", "denied"), "deny"),
    **dict.fromkeys(("excluded_layers", "keep_fp32", "keep_float32"), "keep"),
    **dict.fromkeys(("master_weight", "master_weights", "use_master_weights"), "masters"),
    **dict.fromkeys(("stochastic_rounding", "bf16_stochastic_round"), "masters"),
    **dict.fromkeys(("moments", "optimizer_states", "bf16_optimizer_states"), "slots"),
    **dict.fromkeys(
        (
            *("gradient_accumulation_steps", "accumulate_grad_batches", "accumulation_steps"),
            *("accumulate_steps", "grad_accum", "grad_accumulation", "micro_batches"),
        ),
        "accumulate",
    ),
    **dict.fromkeys(
        (
            *("max_norm", "max_grad_norm", "grad_clip", "grad_clip_norm", "clip_grad", "clip"),
            *("clip_grad_norm", "gradient_clip_val", "gradient_clipping", "global_clipnorm"),
        ),
        "clip_norm",
    ),
    "clipnorm": "clip_each_norm",
    **dict.fromkeys(("clipvalue", "clip_grad_value", "grad_clip_value"), "clip_value"),
    **dict.fromkeys(("init_loss_scaling", "initial_scale", "loss_scale"), "init_scale"),
    "incr_ratio": "growth_factor",
    "decr_ratio": "backoff_factor",
    **dict.fromkeys(("incr_every_n_steps", "loss_scale_window"), "growth_interval"),
    **dict.fromkeys(("decr_every_n_nan_or_inf", "hysteresis"), "backoff_interval"),
    "use_dynamic_loss_scaling": "dynamic",
    "min_loss_scale": "min_scale",
    "max_loss_scale": "max_scale",
    "preset": "like",
    "learning_rate": "lr",
}


def meant(word: object, known: Iterable[str], slips: Mapping[str, str] = NONE) -> str | None:
    """The one of ``known`` that is meant by ``word``; None where that cannot be told.

    It is written in other letters, a known slip, cut short, or misspelt. Of numbers only the order is
    misspelt: "float61" is "float16", but "O3" is not nearly "O1", nor "float64" nearly "float16". An
    object, such as a framework's dtype, means the last name in its text.
    """
    text = str(word)[:100].strip().casefold()
    if not isinstance(word, str):
        text = [text, *re.findall(r"\b[a-z]\w*", text)][-1]
    names = {each.casefold(): each for each in known}
    if text in names:
        return names[text]
    if text in slips:
        return names.get(slips[text].casefold())
    begun = [name for name in names if len(text) > 3 and name.startswith(text)]
    if len(begun) == 1:
        return names[begun[0]]
    from difflib import get_close_matches  # only where something went wrong

    digits = sorted(re.findall(r"\d", text))
    alike = [
        name
        for name in names
        if sorted(re.findall(r"\d", name)) == digits and abs(len(text) - len(name)) <= 1
    ]
    close = get_close_matches(text, alike, 1, 0.7)
    return names[close[0]] if close else None


def did_you_mean(
    word: object, known: Iterable[str], slips: Mapping[str, str], otherwise: str
) -> str:
    """The line of a hint, with ``otherwise`` where it cannot be told what is meant."""
    found = meant(word, known, slips)
    return f"Hint: {otherwise if found is None else f'did you mean {found!r}?'}"
