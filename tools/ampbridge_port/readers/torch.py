"""torch's own mixed precision: ``torch.autocast``, ``torch.amp``, ``torch.cuda.amp``, ``GradScaler``.

Signatures and defaults are those of torch 2.13: torch/amp/autocast_mode.py, torch/amp/grad_scaler.py,
torch/distributed/fsdp/sharded_grad_scaler.py, torch/nn/utils/clip_grad.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ampbridge_port.dialect import Call, Dialect, Draft, Handler, Name, NotKnown
from ampbridge_port.readers import clipping, scaling

DTYPES: Mapping[str, str] = {
    "float16": "float16",
    "half": "float16",
    "bfloat16": "bfloat16",
    "float32": "float32",
    "float": "float32",
    "float64": "float64",
    "double": "float64",
}

# What torch.get_autocast_dtype returns at first; float16 for every other device.
DEVICE_DTYPES: Mapping[str, str] = dict.fromkeys(("cpu", "xla", "hpu", "maia"), "bfloat16")


def dtype_name(value: Any) -> Any:
    """``torch.half`` as ``"float16"``; what is no dtype stays, for the recipe to refuse it."""
    text = value.qualified if isinstance(value, Name) else value
    return DTYPES.get(text.rpartition(".")[2], text) if isinstance(text, str) else text


# -- regions

FLOAT32_REGION = "A region in float32: a recipe has one policy for all of a step."


def autocast(call: Call, draft: Draft) -> None:
    """``torch.autocast(device_type, dtype=None, enabled=True, cache_enabled=None)``."""

    def usual() -> str:
        return DEVICE_DTYPES.get(str(call.value("device_type", "cuda")), "float16")

    region(call, draft, usual)


def cuda_autocast(call: Call, draft: Draft) -> None:
    """``torch.cuda.amp.autocast(enabled=True, dtype=torch.float16, cache_enabled=True)``."""
    region(call, draft, lambda: "float16")


def cpu_autocast(call: Call, draft: Draft) -> None:
    """``torch.cpu.amp.autocast(enabled=True, dtype=torch.bfloat16, cache_enabled=True)``."""
    region(call, draft, lambda: "bfloat16")


def region(call: Call, draft: Draft, usual_dtype: Callable[[], str]) -> None:
    """A region of autocast, which runs in ``usual_dtype()`` where no other is said."""
    if not _take_switch(call, draft):
        return
    if draft.settings.pop("policy.master_weights", None) is False:
        _tell_of_cast(call, draft)
    draft.take("policy.dtype", call, "dtype", None, lambda written: _dtype(written, usual_dtype))
    dtype = draft.settings.get("policy.dtype")
    if dtype == "float32":
        draft.set("policy.level", "O0")
        draft.set("policy.dtype", None)
        draft.find("ignored", call.place, "torch.autocast switches itself off with dtype float32.")
        return
    draft.set("policy.lists", "torch")
    _tell_of_cpu_lists(call, draft)
    if "cache_enabled" in call.arguments:
        message = "cache_enabled is a matter of memory and speed, not of what is computed."
        draft.find("note", call.place_of("cache_enabled"), message)


def _take_switch(call: Call, draft: Draft) -> bool:
    """Set the level by ``enabled``; whether the region has something to say besides."""
    try:
        enabled = call.flag("enabled", True)
    except NotKnown as error:
        draft.set("policy.level", None)
        draft.unknown["policy.level"] = error.place
        return True
    if enabled:
        draft.set("policy.level", "O1")
        return True
    if call.place_of("enabled").text == "False":
        draft.seen["island"] = call.place  # it stands in a training that another place describes
    elif "policy.lists" not in draft.settings:
        draft.set("policy.level", "O0")
    draft.find(
        "lost", call.place, FLOAT32_REGION, "name its ops under deny, or its layers under keep."
    )
    return False


def _dtype(written: Any, usual: Callable[[], str]) -> Any:
    return usual() if written is None else dtype_name(written)


def _tell_of_cpu_lists(call: Call, draft: Draft) -> None:
    if call.name == "torch.cpu.amp.autocast" or _device(call) == "cpu":
        draft.find(
            "lost",
            call.place,
            "On a CPU torch.autocast has shorter lists than on CUDA: softmax, layer_norm, exp, sum and "
            "others stay low there. The recipe has CUDA's, which run them in float32.",
            "lists='native' for what torch does by itself, on torch alone.",
        )


def _device(call: Call) -> str:
    try:
        return str(call.value("device_type", "cuda"))
    except NotKnown:
        return ""


def set_enabled(call: Call, draft: Draft) -> None:
    """``torch.set_autocast_enabled([device_type,] enabled)``: a region without an end."""
    enabled = call.arguments.get("enabled") or call.arguments.get("device_type")
    try:
        on = enabled is not None and enabled.evaluate() is True
    except NotKnown as error:
        draft.unknown["policy.level"] = error.place
        return
    if on and "policy.lists" not in draft.settings:
        draft.set("policy.level", "O1")
        draft.set("policy.dtype", "float16")
        draft.set("policy.lists", "torch")


def set_dtype(call: Call, draft: Draft) -> None:
    """``torch.set_autocast_dtype(device_type, dtype)`` and its elder kin."""
    draft.find(
        "lost",
        call.place,
        "It changes the dtype of regions that name none, wherever they open; "
        "the recipe has the dtype that such a region usually has.",
        "write dtype= into the region, or say policy.dtype yourself.",
    )


def custom_fwd(call: Call, draft: Draft) -> None:
    """``torch.amp.custom_fwd(cast_inputs=torch.float32)``, on an ``autograd.Function``."""
    try:
        dtype = dtype_name(call.value("cast_inputs", None))
    except NotKnown:
        dtype = "a dtype that cannot be known"
    if dtype is not None:
        draft.find(
            "note",
            call.place,
            f"This autograd function casts its inputs to {dtype}, under any policy.",
        )


# -- whole models


def module_cast(call: Call, draft: Draft) -> None:
    """``model.half()`` and ``model.bfloat16()``: every parameter and every op in low precision."""
    if "policy.lists" in draft.settings:
        _tell_of_cast(call, draft)
        return
    pure(draft, call, {"half": "float16", "bfloat16": "bfloat16"}[call.name.rpartition(".")[2]])


def _tell_of_cast(call: Call, draft: Draft) -> None:
    draft.find(
        "note",
        call.place,
        "A model is cast as a whole in this file, and there is autocast too: the recipe has the latter.",
        "level = 'O2' with master_weights = false, if it is the model that is trained.",
    )


def sharded(call: Call, draft: Draft) -> None:
    """FSDP's ``MixedPrecision(param_dtype=None, reduce_dtype=None, ...)``: low copies of float32 shards."""
    try:
        dtype = dtype_name(call.value("param_dtype", None))
    except NotKnown:
        dtype = "a dtype that cannot be known"
    if dtype in (None, "float32"):
        return
    draft.take("policy.dtype", call, "param_dtype", None, dtype_name)
    draft.set("policy.level", "O2")
    draft.set("policy.lists", "torch")
    tell_of_pure(draft, call, dtype)
    if "reduce_dtype" in call.arguments:
        place = call.place_of("reduce_dtype")
        draft.find(
            "note", place, "In which dtype gradients are communicated is no part of a recipe."
        )


def pure(draft: Draft, call: Call, dtype: str) -> None:
    """A model cast as a whole, its optimizer too."""
    draft.set("policy.level", "O2")
    draft.set("policy.dtype", dtype)
    draft.set("policy.lists", "torch")
    draft.set("policy.master_weights", False)
    draft.comments["policy.level"] = call.place.text
    tell_of_pure(draft, call, dtype)


def tell_of_pure(draft: Draft, call: Call, dtype: str) -> None:
    """A model cast as a whole runs everything low; O2 does not."""
    draft.find(
        "lost",
        call.place,
        f"Ops run in the dtype of the weights there: softmax, layer_norm and losses in {dtype} too; "
        "O2 keeps those in float32.",
    )


# -- the scaler


def grad_scaler(call: Call, draft: Draft) -> None:
    """``GradScaler(init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, ..., enabled=True)``."""
    take_scaler(call, draft)
    draft.seen["scaler"] = call.place


def take_scaler(call: Call, draft: Draft) -> None:
    """A scaler that is made of what a call passes under torch's names."""
    scaling.like(draft, "torch")
    try:
        if not call.flag("enabled", True):
            scaling.never(draft)
            return
    except NotKnown as error:
        draft.unknown["scaler.enabled"] = error.place
    for argument, usual in _SCALER_DEFAULTS.items():
        if argument in call.arguments or call.unpacked is not None:
            convert = scaling.whole if argument == "growth_interval" else scaling.number
            draft.take(f"scaler.{argument}", call, argument, usual, convert)


_SCALER_DEFAULTS: Mapping[str, float] = {
    "init_scale": 65536.0,
    "growth_factor": 2.0,
    "backoff_factor": 0.5,
    "growth_interval": 2000,
}


def unscale(call: Call, draft: Draft) -> None:
    """``scaler.unscale_(optimizer)``: what is clipped are the gradients themselves."""
    draft.seen[clipping.UNSCALED] = call.place


def set_growth_factor(call: Call, draft: Draft) -> None:
    """``scaler.set_growth_factor(new_factor)``."""
    draft.take("scaler.growth_factor", call, "new_factor", None, scaling.number)


def set_backoff_factor(call: Call, draft: Draft) -> None:
    """``scaler.set_backoff_factor(new_factor)``."""
    draft.take("scaler.backoff_factor", call, "new_factor", None, scaling.number)


def set_growth_interval(call: Call, draft: Draft) -> None:
    """``scaler.set_growth_interval(new_interval)``."""
    draft.take("scaler.growth_interval", call, "new_interval", None, scaling.whole)


def update(call: Call, draft: Draft) -> None:
    """``scaler.update(new_scale=None)``."""
    if "new_scale" in call.arguments:
        draft.find(
            "lost",
            call.place,
            "update(new_scale) sets the scale by hand; a recipe's scale follows its rule.",
            "dynamic = false keeps init_scale for good.",
        )


# -- gradients


def clamp(call: Call, draft: Draft) -> None:
    """``p.grad.clamp_(min, max)``, in a loop over the parameters."""
    clipping.within(call, draft, "min", "max")
    clipping.note_order(draft, call)


# -- all of a file


def finish(draft: Draft) -> None:
    """What can be said when all calls have been seen."""
    if "policy.level" not in {*draft.settings, *draft.unknown}:
        _settle_level(draft)
    if draft.settings.get("policy.level") == "O0":
        draft.findings[:] = [f for f in draft.findings if f.message != FLOAT32_REGION]
    elif "policy.lists" in draft.settings and draft.settings.get("policy.dtype") != "bfloat16":
        scaling.settle(draft, "torch")
    clipping.tell_of_order(draft, "scaler.unscale_(optimizer) before it, as was probably meant.")


def _settle_level(draft: Draft) -> None:
    """A scaler alone: regions do not open here, or are in another file."""
    if "scaler" not in draft.seen:
        return
    if not draft.seen.keys().isdisjoint((*_REGIONS, "island")):
        draft.set("policy.level", "O0")
    else:
        draft.unknown["policy.level"] = draft.seen["scaler"]


_REGIONS = ("torch.autocast", "torch.cuda.amp.autocast", "torch.cpu.amp.autocast")
_SCALERS = ("torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.cpu.amp.GradScaler")
_SHARDED = "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler"
_NUMBERS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")
CLAMP = "torch.Tensor.grad.clamp_"
"""What a gradient that is clamped in place goes by."""
_METHODS: Mapping[str, tuple[tuple[str, ...], Handler | None]] = {
    "scale": (("outputs",), None),
    "unscale_": (("optimizer",), unscale),
    "step": (("optimizer",), None),
    "update": (("new_scale",), update),
    "set_growth_factor": (("new_factor",), set_growth_factor),
    "set_backoff_factor": (("new_factor",), set_backoff_factor),
    "set_growth_interval": (("new_interval",), set_growth_interval),
    **dict.fromkeys(
        ("is_enabled", "get_scale", "get_growth_factor", "get_backoff_factor"), ((), None)
    ),
    "get_growth_interval": ((), None),
}

SIGNATURES: Mapping[str, tuple[str, ...]] = {
    "torch.autocast": ("device_type", "dtype", "enabled", "cache_enabled"),
    "torch.cuda.amp.autocast": ("enabled", "dtype", "cache_enabled"),
    "torch.cpu.amp.autocast": ("enabled", "dtype", "cache_enabled"),
    "torch.set_autocast_enabled": ("device_type", "enabled"),
    "torch.set_autocast_dtype": ("device_type", "dtype"),
    "torch.set_autocast_gpu_dtype": ("dtype",),
    "torch.set_autocast_cpu_dtype": ("dtype",),
    "torch.amp.custom_fwd": ("fwd", "device_type", "cast_inputs"),
    "torch.cuda.amp.custom_fwd": ("fwd", "cast_inputs"),
    "torch.amp.GradScaler": ("device", *_NUMBERS),
    "torch.cuda.amp.GradScaler": _NUMBERS,
    "torch.cpu.amp.GradScaler": _NUMBERS,
    _SHARDED: (
        "device",
        "init_scale",
        "backoff_factor",
        "growth_factor",
        "growth_interval",
        "enabled",
        "process_group",
    ),
    **{
        f"{scaler}.{method}": parameters
        for scaler in (*_SCALERS, _SHARDED)
        for method, (parameters, _) in _METHODS.items()
    },
    "torch.distributed.fsdp.MixedPrecision": ("param_dtype", "reduce_dtype", "buffer_dtype"),
    "torch.distributed.fsdp.MixedPrecisionPolicy": ("param_dtype", "reduce_dtype", "output_dtype"),
    "torch.nn.Module.half": (),
    "torch.nn.Module.bfloat16": (),
    "torch.nn.utils.clip_grad_norm_": (
        "parameters",
        "max_norm",
        "norm_type",
        "error_if_nonfinite",
        "foreach",
    ),
    "torch.nn.utils.clip_grad_value_": ("parameters", "clip_value", "foreach"),
    CLAMP: ("min", "max"),
}

HANDLERS: Mapping[str, Handler] = {
    "torch.autocast": autocast,
    "torch.cuda.amp.autocast": cuda_autocast,
    "torch.cpu.amp.autocast": cpu_autocast,
    "torch.set_autocast_enabled": set_enabled,
    "torch.set_autocast_dtype": set_dtype,
    "torch.set_autocast_gpu_dtype": set_dtype,
    "torch.set_autocast_cpu_dtype": set_dtype,
    "torch.amp.custom_fwd": custom_fwd,
    "torch.cuda.amp.custom_fwd": custom_fwd,
    **dict.fromkeys((*_SCALERS, _SHARDED), grad_scaler),
    **{
        f"{scaler}.{method}": handler
        for scaler in (*_SCALERS, _SHARDED)
        for method, (_, handler) in _METHODS.items()
        if handler is not None
    },
    "torch.distributed.fsdp.MixedPrecision": sharded,
    "torch.distributed.fsdp.MixedPrecisionPolicy": sharded,
    "torch.nn.Module.half": module_cast,
    "torch.nn.Module.bfloat16": module_cast,
    "torch.nn.utils.clip_grad_norm_": clipping.by_norm,
    "torch.nn.utils.clip_grad_value_": clipping.by_value,
    CLAMP: clamp,
}

DIALECT = Dialect(
    framework="torch",
    signatures=SIGNATURES,
    aliases={
        "torch.amp.autocast": "torch.autocast",
        "torch.amp.autocast_mode.autocast": "torch.autocast",
        "torch.cuda.amp.autocast_mode.autocast": "torch.cuda.amp.autocast",
        "torch.cpu.amp.autocast_mode.autocast": "torch.cpu.amp.autocast",
        "torch.GradScaler": "torch.amp.GradScaler",
        "torch.amp.grad_scaler.GradScaler": "torch.amp.GradScaler",
        "torch.cuda.amp.grad_scaler.GradScaler": "torch.cuda.amp.GradScaler",
        "torch.cpu.amp.grad_scaler.GradScaler": "torch.cpu.amp.GradScaler",
        "torch.amp.autocast_mode.custom_fwd": "torch.amp.custom_fwd",
        "torch.cuda.amp.autocast_mode.custom_fwd": "torch.cuda.amp.custom_fwd",
        "torch.distributed.fsdp.api.MixedPrecision": "torch.distributed.fsdp.MixedPrecision",
        "torch.distributed.fsdp.fully_sharded_data_parallel.MixedPrecision": (
            "torch.distributed.fsdp.MixedPrecision"
        ),
        "torch.nn.utils.clip_grad_norm": "torch.nn.utils.clip_grad_norm_",
        "torch.nn.utils.clip_grad.clip_grad_norm_": "torch.nn.utils.clip_grad_norm_",
        "torch.nn.utils.clip_grad.clip_grad_value_": "torch.nn.utils.clip_grad_value_",
    },
    handlers=HANDLERS,
    finish=finish,
    words=("autocast", "GradScaler", "MixedPrecision", ".half()", ".bfloat16()"),
)
