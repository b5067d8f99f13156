"""torch's own mixed precision, FSDP's, mmengine's ``AmpOptimWrapper``, torchao's optimizers, torchtitan.

Signatures and defaults are those of torch 2.13: torch/amp/autocast_mode.py, torch/amp/grad_scaler.py,
torch/distributed/fsdp/sharded_grad_scaler.py, torch/nn/utils/clip_grad.py; of mmengine of October 2025:
mmengine/optim/optimizer/{amp_optimizer_wrapper,optimizer_wrapper}.py; of torchao 0.18:
torchao/optim/adam.py; and of torchtitan 0.3: torchtitan/config/configs.py,
torchtitan/components/optimizer/optimizer.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ampbridge_port.reader.dialects import steps
from ampbridge_port.reader.dialects.calls import Call, Dialect, Draft, Handler, NotKnown, doubting

LOW_BY_DEVICE: Mapping[str, str] = dict.fromkeys(("cpu", "xla", "hpu", "maia"), "bfloat16")
"""What torch.get_autocast_dtype returns at first; float16 for every other device."""
NUMBERS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
FLOAT32_REGION = "A region in float32: a recipe has one policy for all of a step."
_KEEP = "name its ops under deny, or its layers under keep."


# -- regions


def autocast(call: Call, draft: Draft) -> None:
    """``torch.autocast(device_type, dtype=None, enabled=True, cache_enabled=None)``."""

    def usual_dtype() -> str:
        try:
            return LOW_BY_DEVICE.get(str(call.value("device_type", "cuda")), "float16")
        except NotKnown as error:
            message = "The device is not known here; on a GPU a region without dtype is in float16."
            draft.note(error.place, message, "--set policy.dtype=bfloat16, on a CPU")
            return "float16"

    region(call, draft, usual_dtype)


def region(call: Call, draft: Draft, usual_dtype: Callable[[], str]) -> None:
    """A region of autocast, which runs in ``usual_dtype()`` where no other is said."""
    try:
        on = call.flag("enabled", True)
    except NotKnown as error:
        draft.doubt(error.place, "policy.level")
    else:
        if not on:
            if call.place_of("enabled").text == "False":  # in a training that is said elsewhere
                draft.seen["island"] = call.place
            elif "policy.lists" not in draft.settings:
                draft.set("policy.level", "O0")
            draft.lost(call.place, FLOAT32_REGION, _KEEP)
            return
        draft.set("policy.level", "O1")
    if "cast" in draft.seen:
        _leave_cast_out(draft)
        draft.set("policy.level", "O1")
        _tell_of_cast(call, draft)
    draft.take("policy.dtype", call, "dtype", None, lambda v: steps.dtype_name(v) or usual_dtype())
    if draft.settings.get("policy.dtype") == "float32":
        draft.set("policy.level", "O0")
        draft.set("policy.dtype", None)
        draft.ignored(call.place, "torch.autocast switches itself off with dtype float32.")
        return
    draft.set("policy.lists", "torch")
    _tell_of_cpu_lists(call, draft)
    if "cache_enabled" in call.arguments:
        message = "cache_enabled is a matter of memory and speed, not of what is computed."
        draft.note(call.place_of("cache_enabled"), message)


def _tell_of_cpu_lists(call: Call, draft: Draft) -> None:
    if call.name == "torch.cpu.amp.autocast" or call.known("device_type", "cuda") == "cpu":
        draft.lost(
            call.place,
            "On a CPU torch.autocast has shorter lists than on CUDA: softmax, layer_norm, exp, "
            "sum and others stay low there. The recipe has CUDA's, which run them in float32.",
            "lists='native' for what torch does by itself, on torch alone.",
        )


def device_and_text(call: Call, draft: Draft) -> None:
    """``torch.device("cuda") == "cuda"``, which torch answers with False."""
    message = (
        "A torch.device equals no text, so this is the same on every device; the recipe has the way "
        "that is gone, and a region of another device casts nothing on this one."
    )
    draft.note(call.place, message, 'device.type == "cuda", as was probably meant')


def set_state(call: Call, draft: Draft) -> None:
    """``torch.set_autocast_enabled``, ``torch.set_autocast_dtype`` and their elder kin."""
    if any(each.place.text == "False" for each in call.arguments.values()):
        return
    if "policy.level" not in draft.settings:
        draft.doubt(call.place, "policy.level")
    message = "It changes what autocast does outside of regions, and in regions that name no dtype."
    hint = "write a region with dtype=, or say policy.level and policy.dtype yourself."
    draft.lost(call.place, message, hint)


def custom_fwd(call: Call, draft: Draft) -> None:
    """``torch.amp.custom_fwd(cast_inputs=torch.float32)``, on an ``autograd.Function``."""
    dtype = steps.dtype_name(call.known("cast_inputs", None, "a dtype that cannot be known"))
    if dtype is not None:
        message = f"This autograd function casts its inputs to {dtype}, under any policy."
        draft.note(call.place, message)


# -- whole models


def module_cast(call: Call, draft: Draft) -> None:
    """``model.half()`` and ``model.bfloat16()``: every parameter and every op in low precision."""
    if "policy.lists" in draft.settings:
        _tell_of_cast(call, draft)
    else:
        draft.seen.setdefault("cast", call.place)
        pure(draft, call, "float16" if call.name.endswith("half") else "bfloat16")


def _leave_cast_out(draft: Draft) -> None:
    """A model that is cast as a whole is not the one whose gradients a GradScaler unscales."""
    draft.forget("policy.")
    cast = draft.seen.pop("cast")
    draft.findings[:] = [f for f in draft.findings if f.place != cast]


CAST_TOO = (
    "A model is cast as a whole in this file, and there is autocast too: the recipe has the latter."
)


def _tell_of_cast(call: Call, draft: Draft) -> None:
    hint = "level = 'O2' with masters = 'none', if it is the model that is trained."
    draft.note(call.place, CAST_TOO, hint)


def sharded(call: Call, draft: Draft) -> None:
    """FSDP's ``MixedPrecision(param_dtype=None, reduce_dtype=None, ...)``: low copies of float32 shards."""
    dtype = steps.dtype_name(call.known("param_dtype", None, "a dtype that cannot be known"))
    if dtype in (None, "float32"):
        return
    draft.set_policy("O2", dtype, "torch")
    draft.take("policy.dtype", call, "param_dtype", None, steps.dtype_name)
    tell_of_pure(draft, call, dtype)
    if "reduce_dtype" in call.arguments:
        message = "In which dtype gradients are communicated is no part of a recipe."
        draft.note(call.place_of("reduce_dtype"), message)


def pure(draft: Draft, call: Call, dtype: str) -> None:
    """A model cast as a whole, its optimizer too."""
    draft.set_policy("O2", dtype, "torch")
    draft.set("policy.masters", "none")
    draft.comments["policy.level"] = call.place.text
    tell_of_pure(draft, call, dtype)


def tell_of_pure(draft: Draft, call: Call, dtype: str) -> None:
    """A model cast as a whole runs everything low; O2 does not."""
    message = (
        f"Ops run in the dtype of the weights there: softmax, layer_norm and losses in {dtype} "
        "too; O2 keeps those in float32."
    )
    draft.lost(call.place, message)


# -- the scaler


def grad_scaler(call: Call, draft: Draft) -> None:
    """``GradScaler(init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, ..., enabled=True)``."""
    steps.scaler(call, draft, "torch", dict(zip(NUMBERS, NUMBERS, strict=True)), "enabled")


def scaler_kwargs(call: Call, draft: Draft) -> None:
    """What makes a scaler elsewhere."""
    grad_scaler(call, draft)
    draft.seen.pop("scaler", None)


def setter(key: str) -> Handler:
    """``scaler.set_growth_factor(new_factor)`` and its like."""
    names = {f"new_{key.partition('_')[2]}": key}
    return lambda call, draft: steps.take_numbers(call, draft, names)


def update(call: Call, draft: Draft) -> None:
    """``scaler.update(new_scale=None)``."""
    if call.given("new_scale"):
        message = "update(new_scale) sets the scale by hand; a recipe's scale follows its rule."
        hint = "dynamic = false keeps init_scale for good; min_scale is a floor."
        draft.lost(call.place, message, hint)


def clamp(call: Call, draft: Draft) -> None:
    """``p.grad.clamp_(min, max)``, in a loop over the parameters."""
    steps.clip_within(call, draft, "min", "max")
    steps.note_order(draft, call)


def amp_optim_wrapper(call: Call, draft: Draft) -> None:
    """Mmengine's ``AmpOptimWrapper(loss_scale="dynamic", accumulative_counts=1, clip_grad=None, ...)``."""
    draft.set("policy.level", "O1")
    draft.take("policy.dtype", call, "dtype", None, steps.low_dtype)
    draft.set("policy.lists", "torch")
    described = call.parts("loss_scale")
    if described is not None:
        grad_scaler(described, draft)
    else:
        steps.like(draft, "torch")
        try:
            scale: Any = steps.number(call.value("loss_scale", "dynamic"))
            if scale != "dynamic":
                steps.fixed(draft, "torch", scale)
        except NotKnown as error:
            draft.doubt(error.place, "scaler.init_scale", "scaler.dynamic")
    draft.take("step.accumulate", call, "accumulative_counts", 1, steps.micro_batches)
    clip = call.parts("clip_grad")
    if clip is not None:
        draft.seen[steps.UNSCALED] = call.place  # it does so by itself
        by_value = clip.arguments.get("type") and clip.value("type", "norm") != "norm"
        (steps.clip_by_value if by_value else steps.clip_by_norm)(clip, draft)
    elif call.given("clip_grad"):
        steps.doubt_clip(draft, call.place_of("clip_grad"))


# -- optimizers that keep less than float32, and torchtitan


def torchao_optimizer(call: Call, draft: Draft, bits: int = 16) -> None:
    """``_AdamW(params, ..., bf16_stochastic_round=False)``, and those with slots in ``bits`` bits."""
    if call.given(_BY_CHANCE) and not draft.says("policy."):
        draft.seen.setdefault("cast", call.place)
        pure(draft, call, "bfloat16")  # which it is made for
    draft.seen["optimizer"] = call, bits


def titan_optimizer(call: Call, draft: Draft) -> None:
    """Torchtitan's ``OptimizersContainer.Config(implementation="fused", ...)``."""
    if call.value("implementation", "fused") == "fused_opt_states_bf16":
        draft.seen["optimizer"] = call, 16


def titan_training(call: Call, draft: Draft) -> None:
    """Torchtitan's ``TrainingConfig(dtype="float32", mixed_precision_param="bfloat16", max_norm=1.0)``.

    Its attributes are set as well, one by one.
    """
    if not call.name.endswith("Config"):
        earlier: Call = draft.seen[_TITAN]
        call = replace(earlier, arguments={**earlier.arguments, **call.arguments})
    draft.seen[_TITAN] = call
    _titan_precision(call, draft)
    steps.clip(draft, "clip_norm", call, "max_norm", usual=1.0)
    sizes = call.passing(local_batch_size=8)
    steps.accumulate_by_ranks(sizes, draft, "global_batch_size", "local_batch_size")


@doubting("policy.level", "policy.dtype")
def _titan_precision(call: Call, draft: Draft) -> None:
    """FSDP2 casts to ``mixed_precision_param``, on one device too; ``dtype`` is that of its shards."""
    stored = call.value("dtype", "float32")
    computed = call.value("mixed_precision_param", "bfloat16")
    draft.forget("policy.")  # of another configuration of the file
    if stored != "float32":
        pure(draft, call, stored)
        draft.comments["policy.level"] = f"dtype={stored!r}"
        if computed != stored:
            message = f"It computes in {computed} with weights that are kept in {stored}."
            draft.lost(call.place_of("mixed_precision_param"), message)
    elif computed == "float32":
        draft.set("policy.level", "O0")
    else:
        low = call.named(call.name, param_dtype="mixed_precision_param")
        sharded(low.passing(param_dtype=computed), draft)


def titan_trainer(call: Call, draft: Draft) -> None:
    """Torchtitan's ``Trainer.Config(training=TrainingConfig(), ...)``."""
    if "training" not in call.arguments and call.unpacked is None:
        titan_training(call, draft)


def fewer_bits(call: Call, draft: Draft) -> None:
    """What converts layers to float8, MXFP8 or NVFP4."""
    draft.lost(call.place, "It computes in 8 bits or fewer, which a recipe cannot say.")


def _settle_optimizer(draft: Draft, call: Call, bits: int) -> None:
    """How the optimizer keeps what it may keep low; torchao's has slots in the dtype of its weights."""
    said, is_titans = draft.settings.get, "implementation" in call.arguments
    pure_bfloat16 = (said("policy.masters"), said("policy.dtype")) == ("none", "bfloat16")
    if pure_bfloat16 and not is_titans:
        draft.take_flag("policy.masters", call, _BY_CHANCE, False, "stochastic", "none")
    elif call.given(_BY_CHANCE):
        message = f"{_BY_CHANCE} has an effect on bfloat16 weights alone."
        draft.ignored(call.place_of(_BY_CHANCE), message)
    if pure_bfloat16 or (is_titans and said("policy.level") == "O2"):
        draft.set("policy.slots", "bfloat16")
        if bits == 16:
            steps.tell_of_low_slots(draft, call.place_of("implementation"))
    elif is_titans:
        draft.lost(call.place, "Slots in bfloat16: a recipe has them at O2 alone.")
    if bits < 16:
        draft.lost(call.place, f"Slots in {bits} bits: a recipe has bfloat16, at O2.")


# -- all of a program


def finish(draft: Draft) -> None:
    """What can be said when all calls have been seen."""
    if "optimizer" in draft.seen:
        _settle_optimizer(draft, *draft.seen["optimizer"])
    if "scaler" in draft.seen and draft.settings.get("policy.dtype") == "float16":
        # A GradScaler refuses to unscale float16 gradients: it is another model that is cast.
        draft.findings[:] = [f for f in draft.findings if f.message != CAST_TOO]
        if "cast" in draft.seen:
            _leave_cast_out(draft)
    if not draft.says("policy.level") and "scaler" in draft.seen:
        if "island" in draft.seen:
            draft.set("policy.level", "O0")
        else:
            draft.unknown["policy.level"] = draft.seen["scaler"]  # regions open in another file
    if draft.settings.get("policy.level") == "O0":
        draft.findings[:] = [f for f in draft.findings if f.message != FLOAT32_REGION]
    elif "policy.lists" in draft.settings and draft.settings.get("policy.dtype") != "bfloat16":
        steps.settle(draft, "torch")
    steps.tell_of_order(draft)


_NUMBERS = f"{' '.join(NUMBERS)} enabled"
_SHARDED = "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler"
_SCALERS = {
    "torch.amp.GradScaler": f"device {_NUMBERS}",
    "torch.cuda.amp.GradScaler": _NUMBERS,
    "torch.cpu.amp.GradScaler": _NUMBERS,
    _SHARDED: "device init_scale backoff_factor growth_factor growth_interval enabled process_group",
}
_METHODS: Mapping[str, tuple[str, Handler | None]] = {
    "scale": ("outputs", None),
    "unscale_": ("optimizer", steps.unscales),
    "step": ("optimizer", None),
    "update": ("new_scale", update),
    **{f"set_{key}": (f"new_{key.partition('_')[2]}", setter(key)) for key in NUMBERS[1:]},
    **{f"get_{key}": ("", None) for key in ("scale", *NUMBERS[1:])},
    "is_enabled": ("", None),
}
_FSDP = "torch.distributed.fsdp"
_CLIP_NORM = "parameters max_norm norm_type error_if_nonfinite foreach"
_BY_CHANCE = "bf16_stochastic_round"
_ADAM = f"params lr betas eps weight_decay amsgrad block_size {_BY_CHANCE}"
_TITAN = "torchtitan.TrainingConfig"
_TITANS = ("dtype", "mixed_precision_param", "max_norm", "local_batch_size", "global_batch_size")
_SLOTS = {"8bit": 8, "4bit": 4, "Fp8": 8}
TORCHAO = {
    "torchao.optim._AdamW": 16,
    **{f"torchao.optim.{adam}{n}": _SLOTS[n] for adam in ("Adam", "AdamW") for n in _SLOTS},
}
"""Its optimizers, and in how many bits each keeps its slots."""

_CONVERTERS = [
    f"torchtitan.components.quantization.{kind}Converter"
    for kind in (
        "Float8Linear", "Float8GroupedExperts", "MXFP8Linear", "MXFP8GroupedExperts", "NVFP4Linear",
    )
]  # fmt: skip
_FEWER_BITS = (
    "torchao.float8.convert_to_float8_training",
    *(f"{converter}.Config" for converter in _CONVERTERS),
)

# fmt: off
DIALECT = Dialect(
    "torch",
    {
        "torch.autocast": ("device_type dtype enabled cache_enabled", autocast),
        "torch.cuda.amp.autocast": (
            "enabled dtype cache_enabled", partial(region, usual_dtype=lambda: "float16"),
        ),
        "torch.cpu.amp.autocast": (
            "enabled dtype cache_enabled", partial(region, usual_dtype=lambda: "bfloat16"),
        ),
        **{
            f"torch.set_autocast_{what}": ("device_type value", set_state)
            for what in ("enabled", "dtype", "gpu_dtype", "cpu_dtype")
        },
        "torch.device.__eq__": ("", device_and_text),
        "torch.amp.custom_fwd": ("fwd device_type cast_inputs", custom_fwd),
        "torch.cuda.amp.custom_fwd": ("fwd cast_inputs", custom_fwd),
        **{name: (parameters, grad_scaler) for name, parameters in _SCALERS.items()},
        **{f"{name}.{method}": each for name in _SCALERS for method, each in _METHODS.items()},
        f"{_FSDP}.MixedPrecision": (
            "param_dtype reduce_dtype buffer_dtype keep_low_precision_grads cast_forward_inputs "
            "cast_root_forward_inputs", sharded,
        ),
        f"{_FSDP}.MixedPrecisionPolicy": (
            "param_dtype reduce_dtype output_dtype cast_forward_inputs", sharded,
        ),
        "torch.nn.Module.half": ("", module_cast),
        "torch.nn.Module.bfloat16": ("", module_cast),
        "torch.nn.utils.clip_grad_norm_": (_CLIP_NORM, steps.clip_by_norm),
        "torch.nn.utils.clip_grad_value_": ("parameters clip_value foreach", steps.clip_by_value),
        f"{_FSDP}.FullyShardedDataParallel.clip_grad_norm_": ("max_norm norm_type", steps.clip_by_norm),
        "torch.Tensor.grad.clamp_": ("min max", clamp),
        "mmengine.AmpOptimWrapper": (
            "loss_scale dtype use_fsdp optimizer accumulative_counts clip_grad", amp_optim_wrapper,
        ),
        **{
            name: (_ADAM, partial(torchao_optimizer, bits=bits)) for name, bits in TORCHAO.items()
        },
        _TITAN: (
            f"{' '.join(_TITANS)} mixed_precision_reduce seq_len steps enable_cpu_offload "
            "disable_cuda_graphs gc_freq gc_debug",
            titan_training,
        ),
        "torchtitan.OptimizersContainer.Config": (
            "implementation param_groups optimizer_factory_kwargs_by_name", titan_optimizer,
        ),
        "torchtitan.Trainer.Config": ("training", titan_trainer),
        **{f"{_TITAN}.{key}": (key, titan_training) for key in _TITANS},
        "torchtitan.OptimizersContainer.Config.implementation": ("implementation", titan_optimizer),
        "torchtitan.components.optimizer.default_adamw.implementation": ("implementation", titan_optimizer),
        **dict.fromkeys(("torchtitan.OptimizersContainer", "torchtitan.Trainer", *_CONVERTERS), ("", None)),
        **dict.fromkeys(_FEWER_BITS, ("", fewer_bits)),
    },
    {
        "torch.amp.autocast": "torch.autocast",
        "torch.GradScaler": "torch.amp.GradScaler",
        "torch.distributed._composable.fsdp.MixedPrecisionPolicy": f"{_FSDP}.MixedPrecisionPolicy",
        "torch.nn.utils.clip_grad_norm": "torch.nn.utils.clip_grad_norm_",
    },
    finish,
    frozenset({"mmengine.AmpOptimWrapper", "torchtitan.Trainer.Config", *_FEWER_BITS}),
    {"torchao.prototype.low_bit_optim": "torchao.optim"},
)
# fmt: on
