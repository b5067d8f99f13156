"""The dialects of torch and of what is built on it, call by call; expected settings from their sources."""

from contextlib import suppress

import pytest

from ampbridge import Recipe
from ampbridge_port.reader.dialects import DIALECTS
from ampbridge_port.reader.dialects.calls import Argument, Call, Draft, Name, NotKnown, Object
from ampbridge_port.reader.recipes import IMPOSSIBLE
from ampbridge_port.reading import Place

HERE = Place("train.py", 7, 4, "the call")
ELSEWHERE = Place("train.py", 3, 0, "os.environ['X']")

FLOAT16, BFLOAT16, FLOAT32 = Name("torch.float16"), Name("torch.bfloat16"), Name("torch.float32")
O1 = {"policy.level": "O1", "policy.dtype": "float16", "policy.lists": "torch"}
O1_BFLOAT16 = {**O1, "policy.dtype": "bfloat16"}
O2 = {**O1, "policy.level": "O2"}
BY_CHANCE = {
    **O2,
    "policy.dtype": "bfloat16",
    "policy.masters": "stochastic",
    "policy.slots": "bfloat16",
}
TITAN = {**O2, "policy.dtype": "bfloat16", "step.clip_norm": 1.0}
STOCHASTIC = {"bf16_stochastic_round": True}
BF16_STATES = {"implementation": "fused_opt_states_bf16"}
ALL_BF16 = {
    "enabled": True,
    "bf16_master_weights_and_grads": True,
    "bf16_optimizer_states": True,
}
UNSCALED = {"scaler.enabled": False}
TORCH, APEX = {"scaler.like": "torch"}, {"scaler.like": "apex"}
APEX_DENY = {"policy.deny": ["ctc_loss", "gelu", "grid_sample", "std", "var"]}


class Flag(int):
    """False, written as a name."""

    def __repr__(self):
        return "use_amp"


FLAG = Flag(False)


class Unknown:
    """An argument whose value cannot be known."""


def argument(name, value):
    def evaluate():
        if value is Unknown:
            raise NotKnown(ELSEWHERE)
        return value

    def parts():
        return (
            {key: argument(key, each) for key, each in value.items()}
            if isinstance(value, dict)
            else None
        )

    return Argument(Place("train.py", 7, 10, f"{value!r}"), evaluate, parts=parts)


SCALER = Object(
    "torch.amp.GradScaler",
    Call("torch.amp.GradScaler", HERE, {"init_scale": argument("init_scale", 8192)}),
)


def read(*calls):
    """The draft after these calls: ``(name, {parameter: value})``."""
    draft = Draft()
    for name, arguments in calls:
        dialect = next(each for each in DIALECTS if name in each.calls)
        parameters, handler = dialect.calls[name]
        unknown = set(arguments) - set(parameters.split())
        assert not unknown, f"{name} has no parameter {unknown}"
        made = {key: argument(key, value) for key, value in arguments.items()}
        handler(Call(name, HERE, made), draft)
    dialect.finish(draft)
    return draft


@pytest.mark.parametrize(
    "calls, settings",
    [
        # torch/amp/autocast_mode.py: the dtype is that of the device
        ([("torch.autocast", {"device_type": "cuda"})], O1 | UNSCALED),
        ([("torch.autocast", {"device_type": "cpu"})], O1_BFLOAT16),
        ([("torch.autocast", {"device_type": "xpu"})], O1 | UNSCALED),
        ([("torch.autocast", {"device_type": "cuda", "dtype": BFLOAT16})], O1_BFLOAT16),
        ([("torch.autocast", {"device_type": "cuda", "dtype": Name("torch.half")})], O1 | UNSCALED),
        ([("torch.cuda.amp.autocast", {})], O1 | UNSCALED),
        ([("torch.cpu.amp.autocast", {})], O1_BFLOAT16),
        ([("torch.cuda.amp.autocast", {"enabled": FLAG})], {"policy.level": "O0"}),
        ([("torch.cuda.amp.autocast", {"dtype": FLOAT32})], {"policy.level": "O0"}),
        ([("torch.cuda.amp.autocast", {}), ("torch.amp.GradScaler", {})], O1 | TORCH),
        ([("torch.amp.GradScaler", {}), ("torch.cuda.amp.autocast", {})], O1 | TORCH),
        (
            [
                ("torch.cuda.amp.autocast", {}),
                ("torch.cuda.amp.GradScaler", {"init_scale": 1024, "growth_interval": 500.0}),
            ],
            O1 | TORCH | {"scaler.init_scale": 1024.0, "scaler.growth_interval": 500},
        ),
        (
            [
                ("torch.amp.GradScaler", {"enabled": False}),
                ("torch.cuda.amp.autocast", {"enabled": False}),
            ],
            {"policy.level": "O0"} | UNSCALED,
        ),
        (
            [
                ("torch.cuda.amp.autocast", {}),
                ("torch.amp.GradScaler", {}),
                ("torch.amp.GradScaler.set_growth_interval", {"new_interval": 100}),
                ("torch.amp.GradScaler.set_backoff_factor", {"new_factor": 0.25}),
                ("torch.amp.GradScaler.set_growth_factor", {"new_factor": 4}),
            ],
            O1
            | TORCH
            | {
                "scaler.growth_interval": 100,
                "scaler.backoff_factor": 0.25,
                "scaler.growth_factor": 4.0,
            },
        ),
        (
            [
                ("torch.cuda.amp.autocast", {"dtype": BFLOAT16}),
                ("torch.nn.utils.clip_grad_norm_", {"max_norm": 1}),
            ],
            O1_BFLOAT16 | {"step.clip_norm": 1.0},
        ),
        ([("torch.nn.Module.half", {})], O2 | UNSCALED | {"policy.masters": "none"}),
        (
            [("torch.nn.Module.bfloat16", {})],
            O2 | {"policy.dtype": "bfloat16", "policy.masters": "none"},
        ),
        # torch/distributed/fsdp/api.py: float32 shards, low copies
        (
            [("torch.distributed.fsdp.MixedPrecision", {"param_dtype": BFLOAT16})],
            O2 | {"policy.dtype": "bfloat16"},
        ),
        ([("torch.distributed.fsdp.MixedPrecisionPolicy", {"reduce_dtype": FLOAT32})], {}),
        # torchao/optim/adam.py: slots are zeros_like of bfloat16 weights
        ([("torchao.optim._AdamW", STOCHASTIC)], BY_CHANCE),
        (
            [("torchao.optim._AdamW", {}), ("torch.nn.Module.bfloat16", {})],
            BY_CHANCE | {"policy.masters": "none"},
        ),
        (
            [("torch.nn.Module.bfloat16", {}), ("torchao.optim.AdamW8bit", STOCHASTIC)],
            BY_CHANCE,
        ),
        (
            [("torch.nn.Module.half", {}), ("torchao.optim._AdamW", STOCHASTIC)],
            O2 | UNSCALED | {"policy.masters": "none"},
        ),
        (
            [("torchao.optim.AdamW4bit", STOCHASTIC), ("torch.cuda.amp.autocast", {})],
            O1 | UNSCALED,
        ),
        # torchtitan/config/configs.py, torchtitan/models/llama3/parallelize.py: FSDP2 on one device, too
        ([("torchtitan.Trainer.Config", {})], TITAN),
        ([("torchtitan.TrainingConfig", {"max_norm": 0.5})], TITAN | {"step.clip_norm": 0.5}),
        (
            [("torchtitan.TrainingConfig", {"dtype": "bfloat16", "global_batch_size": 8})],
            TITAN | {"policy.masters": "none"},
        ),
        (
            [("torchtitan.TrainingConfig", {"mixed_precision_param": "float32"})],
            {"policy.level": "O0", "step.clip_norm": 1.0},
        ),
        (
            [
                ("torchtitan.OptimizersContainer.Config", BF16_STATES),
                ("torchtitan.Trainer.Config", {}),
            ],
            TITAN | {"policy.slots": "bfloat16"},
        ),
        # apex/amp/frontend.py: the table of opt_levels
        ([("apex.amp.initialize", {})], O1 | APEX | APEX_DENY),
        ([("apex.amp.initialize", {"opt_level": "O0"})], {"policy.level": "O0"} | UNSCALED),
        (
            [("apex.amp.initialize", {"opt_level": "O2"})],
            O2 | APEX | {"policy.masters": "float32"},
        ),
        (
            [("apex.amp.initialize", {"opt_level": "O3"})],
            O2 | UNSCALED | {"policy.masters": "none"},
        ),
        ([("apex.amp.initialize", {"enabled": False})], {"policy.level": "O0"} | UNSCALED),
        (
            [("apex.amp.initialize", {"opt_level": "O2", "loss_scale": "128.0"})],
            O2
            | APEX
            | {"policy.masters": "float32", "scaler.init_scale": 128.0, "scaler.dynamic": False},
        ),
        (
            [("apex.amp.initialize", {"max_loss_scale": 2.0**14, "min_loss_scale": 1})],
            O1
            | APEX
            | APEX_DENY
            | {"scaler.init_scale": 2.0**14, "scaler.max_scale": 2.0**14, "scaler.min_scale": 1.0},
        ),
        (
            [
                ("apex.amp.register_float_function", {"module": Name("torch"), "name": "sigmoid"}),
                (
                    "apex.amp.register_half_function",
                    {"module": Name("torch.nn.functional"), "name": "gelu"},
                ),
                ("apex.amp.initialize", {"cast_model_outputs": FLOAT32}),
            ],
            O1
            | APEX
            | {
                "policy.deny": ["ctc_loss", "grid_sample", "sigmoid", "std", "var"],
                "policy.allow": ["gelu"],
                "policy.output_dtype": "float32",
            },
        ),
        # lightning/fabric/connector.py: precisions and what older ones became
        ([("lightning.pytorch.Trainer", {})], {"policy.level": "O0"}),
        ([("lightning.pytorch.Trainer", {"precision": 16})], O1 | TORCH),
        ([("lightning.pytorch.Trainer", {"precision": "bf16"})], O1_BFLOAT16),
        (
            [("lightning.fabric.Fabric", {"precision": "16-true"})],
            O2 | UNSCALED | {"policy.masters": "none"},
        ),
        (
            [("lightning.fabric.Fabric", {"precision": "bf16-true"})],
            O2 | {"policy.dtype": "bfloat16", "policy.masters": "none"},
        ),
        (
            [("lightning.fabric.Fabric", {"precision": "16-mixed", "accelerator": "cpu"})],
            O1_BFLOAT16,
        ),
        (
            [
                (
                    "lightning.pytorch.Trainer",
                    {
                        "precision": "16-mixed",
                        "accumulate_grad_batches": 8,
                        "gradient_clip_val": 0.5,
                    },
                )
            ],
            O1 | TORCH | {"step.accumulate": 8, "step.clip_norm": 0.5},
        ),
        (
            [
                ("torch.amp.GradScaler", {"init_scale": 8192}),
                (
                    "lightning.pytorch.plugins.MixedPrecision",
                    {"precision": "16-mixed", "device": "cuda"},
                ),
                ("lightning.pytorch.Trainer", {"plugins": Unknown}),
            ],
            O1 | TORCH | {"scaler.init_scale": 8192.0},
        ),
        (
            [
                (
                    "lightning.pytorch.Trainer",
                    {"precision": 16, "amp_backend": "apex", "amp_level": "O1"},
                )
            ],
            O1 | APEX | APEX_DENY,
        ),
        # accelerate/accelerator.py, transformers/training_args.py
        ([("accelerate.Accelerator", {"mixed_precision": "no"})], {"policy.level": "O0"}),
        ([("accelerate.Accelerator", {"mixed_precision": "fp16"})], O1 | TORCH),
        (
            [
                (
                    "accelerate.Accelerator",
                    {"mixed_precision": "bf16", "gradient_accumulation_steps": 4},
                )
            ],
            O1_BFLOAT16 | {"step.accumulate": 4},
        ),
        (
            [
                ("accelerate.GradScalerKwargs", {"init_scale": 512.0, "growth_interval": 100}),
                ("accelerate.GradientAccumulationPlugin", {"num_steps": 3}),
                ("accelerate.Accelerator", {"mixed_precision": "fp16"}),
                ("accelerate.Accelerator.clip_grad_norm_", {"max_norm": 1.0}),
            ],
            O1
            | TORCH
            | {
                "scaler.init_scale": 512.0,
                "scaler.growth_interval": 100,
                "step.accumulate": 3,
                "step.clip_norm": 1.0,
            },
        ),
        (
            [("accelerate.Accelerator", {"mixed_precision": "bf16", "fsdp_plugin": Unknown})],
            O2 | {"policy.dtype": "bfloat16"},
        ),
        (
            [("transformers.TrainingArguments", {"fp16": True})],
            O1 | TORCH | {"step.clip_norm": 1.0},
        ),
        (
            [("transformers.TrainingArguments", {"bf16": True, "max_grad_norm": 0.0})],
            O1_BFLOAT16,
        ),
        (
            [("transformers.TrainingArguments", {"gradient_accumulation_steps": 2})],
            {"policy.level": "O0", "step.accumulate": 2, "step.clip_norm": 1.0},
        ),
        (
            [
                (
                    "transformers.TrainingArguments",
                    {"fp16": True, "half_precision_backend": "apex", "fp16_opt_level": "O2"},
                )
            ],
            O2 | APEX | {"policy.masters": "float32", "step.clip_norm": 1.0},
        ),
        # mmengine/optim/optimizer/amp_optimizer_wrapper.py
        ([("mmengine.AmpOptimWrapper", {})], O1 | TORCH),
        (
            [("mmengine.AmpOptimWrapper", {"loss_scale": 512.0, "dtype": BFLOAT16})],
            O1_BFLOAT16 | TORCH | {"scaler.init_scale": 512.0, "scaler.dynamic": False},
        ),
        (
            [
                (
                    "mmengine.AmpOptimWrapper",
                    {
                        "loss_scale": {"init_scale": 8},
                        "clip_grad": {"max_norm": 35},
                        "accumulative_counts": 2,
                    },
                )
            ],
            O1 | TORCH | {"scaler.init_scale": 8.0, "step.clip_norm": 35.0, "step.accumulate": 2},
        ),
    ],
    ids=lambda value: value[-1][0] if isinstance(value, list) else "",
)
def test_settings(calls, settings):
    draft = read(*calls)
    assert draft.settings == settings
    assert draft.unknown == {}
    sections = {}
    for key, value in settings.items():
        sections.setdefault(key.partition(".")[0], {})[key.partition(".")[2]] = value
    Recipe.from_dict(sections)  # what was read can be made


@pytest.mark.parametrize(
    "calls, kind, says",
    [
        ([("torch.autocast", {"device_type": "cpu"})], "lost", "softmax, layer_norm, exp, sum"),
        ([("torch.cuda.amp.autocast", {"dtype": FLOAT32})], "ignored", "switches itself off"),
        ([("torch.cuda.amp.autocast", {"cache_enabled": False})], "note", "cache_enabled"),
        (
            [("torch.cuda.amp.autocast", {}), ("torch.cuda.amp.autocast", {"enabled": False})],
            "lost",
            "A region in float32",
        ),
        (
            [("torch.cuda.amp.autocast", {"enabled": False}), ("torch.cuda.amp.autocast", {})],
            "lost",
            "A region in float32",
        ),
        (
            [
                ("torch.cuda.amp.autocast", {}),
                ("torch.amp.GradScaler", {}),
                ("torch.nn.utils.clip_grad_norm_", {"max_norm": 1.0}),
            ],
            "lost",
            "It clips gradients that are still scaled",
        ),
        (
            [("torch.amp.custom_fwd", {"device_type": "cuda", "cast_inputs": FLOAT32})],
            "note",
            "to float32",
        ),
        ([("torch.set_autocast_gpu_dtype", {"value": BFLOAT16})], "lost", "that name no dtype"),
        ([("torch.amp.GradScaler.update", {"new_scale": 2.0})], "lost", "sets the scale by hand"),
        (
            [("torch.nn.utils.clip_grad_norm_", {"max_norm": 1.0, "norm_type": "inf"})],
            "lost",
            "by the inf-norm",
        ),
        ([("torch.nn.Module.half", {})], "lost", "losses in float16 too"),
        ([("torchao.optim._AdamW", STOCHASTIC)], "note", "squares cannot shrink"),
        ([("torchao.optim.AdamWFp8", STOCHASTIC)], "lost", "Slots in 8 bits"),
        (
            [("torchao.optim._AdamW", STOCHASTIC), ("torch.cuda.amp.autocast", {})],
            "ignored",
            "on bfloat16 weights alone",
        ),
        (
            [
                ("torchtitan.OptimizersContainer.Config", BF16_STATES),
                ("torchtitan.TrainingConfig", {"mixed_precision_param": "float32"}),
            ],
            "lost",
            "at O2 alone",
        ),
        (
            [
                (
                    "torchtitan.TrainingConfig",
                    {"dtype": "bfloat16", "mixed_precision_param": "float32"},
                )
            ],
            "lost",
            "computes in float32",
        ),
        (
            [("torchtitan.components.quantization.NVFP4LinearConverter.Config", {})],
            "lost",
            "8 bits or fewer",
        ),
        ([("apex.amp.initialize", {"loss_scale": 128.0})], "lost", "applies infinite gradients"),
        ([("apex.amp.initialize", {"num_losses": 3})], "lost", "3 losses"),
        (
            [("apex.amp.initialize", {"opt_level": "O3"})],
            "lost",
            "Batch normalization has float16 weights",
        ),
        ([("apex.amp.initialize", {"opt_level": "02"})], "note", "no opt_level '02'"),
        ([("apex.amp.float_function", {})], "lost", "A function of one's own"),
        (
            [("apex.amp.register_float_function", {"module": None, "name": "f"})],
            "lost",
            "of one's own",
        ),
        ([("lightning.fabric.Fabric", {"precision": "transformer-engine"})], "lost", "in 8 bits"),
        ([("lightning.fabric.Fabric", {"precision": "64-true"})], "lost", "float64"),
        (
            [("lightning.fabric.Fabric", {"precision": "16-mixed", "accelerator": "cpu"})],
            "ignored",
            "bf16-mixed for 16-mixed",
        ),
        (
            [("lightning.pytorch.Trainer", {"accumulate_grad_batches": {0: 1, 4: 8}})],
            "lost",
            "epoch",
        ),
        ([("accelerate.Accelerator", {"mixed_precision": "fp8"})], "lost", "in 8 bits"),
        ([("accelerate.Accelerator", {})], "note", "accelerate config"),
        (
            [("accelerate.Accelerator", {"mixed_precision": "fp16", "cpu": True})],
            "ignored",
            "no fp16 on a CPU",
        ),
        ([("accelerate.AutocastKwargs", {"enabled": False})], "lost", "in float32"),
        (
            [("transformers.TrainingArguments", {"deepspeed": "ds.json"})],
            "note",
            "own configuration",
        ),
        ([("deepspeed.initialize", {"config": "ds.json"})], "note", "A file has the precision"),
    ],
)
def test_findings(calls, kind, says):
    found = [f for f in read(*calls).findings if says in f.message]
    assert [f.kind for f in found] == [kind]


@pytest.mark.parametrize(
    "calls, unknown",
    [
        ([("torch.autocast", {"device_type": Unknown})], set()),
        ([("torch.autocast", {"device_type": Unknown, "dtype": FLOAT16})], set()),
        ([("torch.cuda.amp.autocast", {"enabled": Unknown})], {"policy.level"}),
        ([("torch.cuda.amp.autocast", {"dtype": Unknown})], {"policy.dtype"}),
        ([("torch.amp.GradScaler", {})], {"policy.level"}),
        (
            [("torch.cuda.amp.autocast", {}), ("torch.amp.GradScaler", {"init_scale": Unknown})],
            {"scaler.init_scale"},
        ),
        (
            [("torch.cuda.amp.autocast", {}), ("torch.amp.GradScaler", {"enabled": Unknown})],
            {"scaler.enabled"},
        ),
        ([("torch.nn.utils.clip_grad_norm_", {"max_norm": Unknown})], {"step.clip_norm"}),
        ([("torchao.optim._AdamW", {"bf16_stochastic_round": Unknown})], {"policy.masters"}),
        ([("torchtitan.TrainingConfig", {"global_batch_size": 64})], {"step.accumulate"}),
        ([("torchtitan.TrainingConfig", {"dtype": Unknown})], {"policy.level", "policy.dtype"}),
        ([("apex.amp.initialize", {"opt_level": Unknown})], {"policy.level", "scaler.enabled"}),
        (
            [("apex.amp.initialize", {"loss_scale": Unknown})],
            {"scaler.init_scale", "scaler.dynamic"},
        ),
        ([("lightning.pytorch.Trainer", {"precision": Unknown})], {"policy.level", "policy.dtype"}),
        ([("lightning.pytorch.Trainer", {"precision": True})], {"policy.level", "policy.dtype"}),
        ([("lightning.fabric.Fabric", {"plugins": Unknown})], {"policy.level", "policy.dtype"}),
        ([("lightning.fabric.Fabric", {"precision": "bf16-mixed", "strategy": Unknown})], set()),
        ([("lightning.fabric.Fabric", {"precision": "transformer-engine"})], {"policy.level"}),
        ([("accelerate.Accelerator", {})], {"policy.level", "policy.dtype"}),
        ([("accelerate.Accelerator", {"mixed_precision": "fp8"})], {"policy.level"}),
        ([("transformers.TrainingArguments", {"fp16": Unknown})], {"policy.level", "policy.dtype"}),
        ([("deepspeed.initialize", {"config": Unknown})], {"policy.level"}),
    ],
)
def test_what_cannot_be_known(calls, unknown):
    draft = read(*calls)
    assert set(draft.unknown) == unknown
    assert unknown.isdisjoint(draft.settings)


def test_a_region_that_is_never_on_says_nothing_of_the_training_around_it():
    draft = read(("torch.cuda.amp.autocast", {"enabled": False}))
    assert draft.settings == draft.unknown == {}


def test_nothing_is_lost_where_it_is_all_float32_or_unscaled_first():
    off = read(("torch.cuda.amp.autocast", {"enabled": FLAG}))
    clipped = read(
        ("torch.cuda.amp.autocast", {}),
        ("torch.amp.GradScaler", {}),
        ("torch.amp.GradScaler.unscale_", {}),
        ("torch.nn.utils.clip_grad_norm_", {"max_norm": 1.0}),
    )
    assert off.findings == clipped.findings == []


def test_a_region_says_what_the_scaler_alone_does_not():
    draft = read(("torch.amp.GradScaler", {}), ("torch.cuda.amp.autocast", {}))
    assert draft.unknown == {}


def test_unknown_arguments_may_hold_any_setting():
    draft = Draft()
    torch = next(each for each in DIALECTS if each.framework == "torch")
    torch.calls["torch.amp.GradScaler"][1](
        Call("torch.amp.GradScaler", HERE, {}, unpacked=ELSEWHERE), draft
    )
    expected = {"init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled"}
    assert {f"scaler.{name}" for name in expected} <= set(draft.unknown)


DEEPSPEED_O2 = O2 | {"scaler.like": "deepspeed", "step.clip_norm": 1.0}
DYNAMIC = {
    "scaler.init_scale": 65536.0,
    "scaler.growth_interval": 1000,
    "scaler.min_scale": 1.0,
    "scaler.backoff_interval": 1,
    "scaler.at_min_scale": "stay",
}
ZERO = {"zero_optimization": {"stage": 2}, "gradient_clipping": 1.0}


@pytest.mark.parametrize(
    "config, settings",
    [
        # deepspeed/runtime/precision_config.py; without ZeRO fused_optimizer.py counts no hysteresis
        ({"fp16": {"enabled": True}}, DEEPSPEED_O2 | DYNAMIC),
        (
            {"fp16": {"enabled": True}, **ZERO},
            DEEPSPEED_O2
            | {
                "scaler.init_scale": 65536.0,
                "scaler.growth_interval": 1000,
                "scaler.min_scale": 1.0,
                "scaler.backoff_interval": 2,
                "scaler.backoff_count": "until_growth",
            },
        ),
        (
            {
                "fp16": {
                    "enabled": "true",
                    "initial_scale_power": 12,
                    "loss_scale_window": 500,
                    "hysteresis": 4,
                    "consecutive_hysteresis": True,
                    "min_loss_scale": 2,
                },
                **ZERO,
            },
            DEEPSPEED_O2
            | {
                "scaler.init_scale": 4096.0,
                "scaler.growth_interval": 500,
                "scaler.min_scale": 2.0,
                "scaler.backoff_interval": 4,
                "scaler.backoff_count": "until_finite",
            },
        ),
        (
            {"fp16": {"enabled": True, "loss_scale": 128}},
            DEEPSPEED_O2 | {"scaler.init_scale": 128.0, "scaler.dynamic": False},
        ),
        (
            {"fp16": {"enabled": True, "loss_scale": 0.5}},
            DEEPSPEED_O2
            | {"scaler.init_scale": 0.5, "scaler.dynamic": False, "scaler.min_scale": 0.5},
        ),
        (
            {"bf16": {"enabled": True}, "gradient_clipping": 0, "gradient_accumulation_steps": 8},
            O2 | {"policy.dtype": "bfloat16", "step.accumulate": 8},
        ),
        (
            {"bfloat16": {"enabled": True, "bf16_master_weights_and_grads": True}},
            O2 | {"policy.dtype": "bfloat16", "policy.masters": "none", "step.clip_norm": 1.0},
        ),
        (
            {"bf16": ALL_BF16, "torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
            BY_CHANCE | {"policy.masters": "none", "step.clip_norm": 1.0},
        ),
        (
            {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
            O1_BFLOAT16 | {"step.clip_norm": 1.0},
        ),
        ({"torch_autocast": {"enabled": True}}, O1 | TORCH | {"step.clip_norm": 1.0}),
        (
            {"fp16": {"enabled": True}, "torch_autocast": {"enabled": True}},
            O2 | TORCH | {"step.clip_norm": 1.0},
        ),
        (
            {"amp": {"enabled": True, "opt_level": "O1"}},
            O1 | APEX | APEX_DENY | {"step.clip_norm": 1.0},
        ),
        ({"fp16": {"enabled": False}}, {"policy.level": "O0", "step.clip_norm": 1.0}),
        (
            {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 8, "zero_optimization": True},
            {"policy.level": "O0", "step.clip_norm": 1.0},
        ),
    ],
)
def test_deepspeed(config, settings):
    draft = read(("deepspeed.initialize", {"config": config}))
    assert draft.settings == settings
    assert draft.unknown == {}


@pytest.mark.parametrize(
    "beside, within, told",
    [
        ("bf16", "bfloat16", []),
        ("bf16", "float16", ["lost"]),
        ("fp16", "float16", ["note"]),
        ("amp", "float16", ["note"]),
    ],
)
def test_a_region_of_deepspeed_stands_beside_low_parameters(beside, within, told):
    """As DeepSpeed 0.19.8 trains; apex it refuses."""
    config = {
        beside: {"enabled": True},
        "torch_autocast": {"enabled": True, "dtype": within},
        "gradient_clipping": 1.0,
    }
    draft = read(("deepspeed.initialize", {"config": config}))
    assert [found.kind for found in draft.findings] == told


def test_a_deepspeed_configuration_that_is_known_in_part():
    config = {
        "fp16": {"enabled": True, "initial_scale_power": Unknown},
        "gradient_clipping": "auto",
    }
    draft = read(("deepspeed.initialize", {"config": config}))
    assert set(draft.unknown) == {"scaler.init_scale", "step.clip_norm"}
    assert draft.settings["policy.level"] == "O2"


def test_deepspeed_without_zero_ignores_hysteresis():
    draft = read(("deepspeed.initialize", {"config": {"fp16": {"enabled": True, "hysteresis": 3}}}))
    ignored = [f for f in draft.findings if f.kind == "ignored"]
    assert len(ignored) == 1
    assert "take no notice of hysteresis" in ignored[0].message


def test_deepspeed_accumulation_that_depends_on_the_number_of_devices():
    batches = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}
    draft = read(("deepspeed.initialize", {"config": {"bf16": {"enabled": True}, **batches}}))
    assert set(draft.unknown) == {"step.accumulate"}


def test_lightning_leaves_the_precision_to_deepspeed():
    draft = read(
        ("lightning.pytorch.Trainer", {"precision": "16-mixed", "strategy": "deepspeed_stage_2"})
    )
    assert "policy.level" in draft.unknown
    assert "ds_config.json" in draft.findings[0].hint


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.framework)
def test_tables_fit_together(dialect):
    assert set(dialect.aliases.values()) <= set(dialect.calls)
    assert not set(dialect.aliases) & set(dialect.calls)


@pytest.mark.parametrize("odd", [None, True, "dynamic", object(), [], {}, float("nan"), 10**400])
def test_odd_values_are_left_for_the_recipe_to_refuse(odd):
    """A handler fails on a value that its library would refuse by what the reader tells, if at all."""
    for dialect in DIALECTS:
        for name, (parameters, handler) in dialect.calls.items():
            for parameter in parameters.split() if handler is not None else ():
                with suppress(*IMPOSSIBLE):
                    handler(Call(name, HERE, {parameter: argument(parameter, odd)}), Draft())
