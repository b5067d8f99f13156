"""The dialects of torch and of what is built on it, call by call; expected settings from their sources.

A case is a line, or several of which all but the first are indented: calls, and what they come to.
"""

import ast
import re
from contextlib import suppress

import pytest

from ampbridge import Recipe
from ampbridge_port.reader.dialects import DIALECTS
from ampbridge_port.reader.dialects.calls import Argument, Call, Draft, Name, NotKnown
from ampbridge_port.reader.recipes import IMPOSSIBLE
from ampbridge_port.reading import Place

HERE = Place("train.py", 7, 4, "the call")
ELSEWHERE = Place("train.py", 3, 0, "os.environ['X']")
SHORT = {
    "APEX_O1": "scaler.like='apex'; policy.deny=['ctc_loss', 'gelu', 'grid_sample', 'std', 'var']",
    "BY_CHANCE": "policy.masters='stochastic'; policy.slots='bfloat16'",
}


def cases(text):
    """The two sides of each case."""
    lines = re.sub(r"^#.*\n", "", text, flags=re.M).strip().replace("\n    ", " ").splitlines()
    return [[side.strip() for side in line.partition("->")[::2]] for line in lines]


def settings_of(text):
    """``O1 float16 torch; scaler.like='torch'`` as the keys of a recipe."""
    for short, meant in SHORT.items():
        text = text.replace(short, meant)
    said = [each for each in re.split(r"; ?", text) if each]
    policy = said.pop(0).split() if said and "=" not in said[0] else []
    settings = dict(zip(("policy.level", "policy.dtype", "policy.lists"), policy, strict=False))
    return settings | {
        key: ast.literal_eval(value) for key, value in (s.split("=", 1) for s in said)
    }


def argument(node):
    """``UNKNOWN`` cannot be known, and ``use_amp`` is False, written as a name."""
    text = ast.unparse(node)

    def evaluate():
        match node:
            case ast.Name("UNKNOWN"):
                raise NotKnown(ELSEWHERE)
            case ast.Name("use_amp"):
                return False
            case ast.Name() | ast.Attribute():
                return Name(text)
            case ast.Dict():
                return {key: each.evaluate() for key, each in parts().items()}
        return ast.literal_eval(node)

    def parts():
        if not isinstance(node, ast.Dict):
            return None
        pairs = zip(node.keys, node.values, strict=True)
        return {ast.literal_eval(key): argument(value) for key, value in pairs}

    return Argument(Place("train.py", 7, 10, text), evaluate, parts=parts)


def read(source):
    """The draft after these calls."""
    draft = Draft()
    for statement in ast.parse(source).body:
        name = ast.unparse(statement.value.func)
        arguments = {each.arg: argument(each.value) for each in statement.value.keywords}
        dialect = next(each for each in DIALECTS if name in each.calls)
        parameters, handler = dialect.calls[name]
        assert not set(arguments) - set(parameters.split())
        handler(Call(name, HERE, arguments), draft)
    dialect.finish(draft)
    return draft


SETTINGS = """
# torch/amp/autocast_mode.py: the dtype is that of the device
torch.autocast(device_type='cuda') -> O1 float16 torch; scaler.enabled=False
torch.autocast(device_type='cpu') -> O1 bfloat16 torch
torch.autocast(device_type='xpu') -> O1 float16 torch; scaler.enabled=False
torch.autocast(device_type='cuda', dtype=torch.bfloat16) -> O1 bfloat16 torch
torch.autocast(device_type='cuda', dtype=torch.half) -> O1 float16 torch; scaler.enabled=False
torch.cuda.amp.autocast() -> O1 float16 torch; scaler.enabled=False
torch.cpu.amp.autocast() -> O1 bfloat16 torch
torch.cuda.amp.autocast(enabled=use_amp) -> O0
torch.cuda.amp.autocast(dtype=torch.float32) -> O0
torch.cuda.amp.autocast(); torch.amp.GradScaler() -> O1 float16 torch; scaler.like='torch'
torch.amp.GradScaler(); torch.cuda.amp.autocast() -> O1 float16 torch; scaler.like='torch'
torch.cuda.amp.autocast(); torch.cuda.amp.GradScaler(init_scale=1024, growth_interval=500.0)
    -> O1 float16 torch; scaler.like='torch'; scaler.init_scale=1024.0; scaler.growth_interval=500
torch.amp.GradScaler(enabled=False); torch.cuda.amp.autocast(enabled=False) -> O0; scaler.enabled=False
torch.cuda.amp.autocast(); torch.amp.GradScaler();
    torch.amp.GradScaler.set_growth_interval(new_interval=100);
    torch.amp.GradScaler.set_backoff_factor(new_factor=0.25);
    torch.amp.GradScaler.set_growth_factor(new_factor=4)
    -> O1 float16 torch; scaler.like='torch'; scaler.growth_interval=100; scaler.backoff_factor=0.25;
    scaler.growth_factor=4.0
torch.cuda.amp.autocast(dtype=torch.bfloat16); torch.nn.utils.clip_grad_norm_(max_norm=1)
    -> O1 bfloat16 torch; step.clip_norm=1.0
torch.nn.Module.half() -> O2 float16 torch; scaler.enabled=False; policy.masters='none'
torch.nn.Module.bfloat16() -> O2 bfloat16 torch; policy.masters='none'
# torch/distributed/fsdp/api.py: float32 shards, low copies
torch.distributed.fsdp.MixedPrecision(param_dtype=torch.bfloat16) -> O2 bfloat16 torch
torch.distributed.fsdp.MixedPrecisionPolicy(reduce_dtype=torch.float32) ->
# torchao/optim/adam.py: slots are zeros_like of bfloat16 weights
torchao.optim._AdamW(bf16_stochastic_round=True) -> O2 bfloat16 torch; BY_CHANCE
torchao.optim._AdamW(); torch.nn.Module.bfloat16()
    -> O2 bfloat16 torch; policy.masters='none'; policy.slots='bfloat16'
torch.nn.Module.bfloat16(); torchao.optim.AdamW8bit(bf16_stochastic_round=True)
    -> O2 bfloat16 torch; BY_CHANCE
torch.nn.Module.half(); torchao.optim._AdamW(bf16_stochastic_round=True)
    -> O2 float16 torch; scaler.enabled=False; policy.masters='none'
torchao.optim.AdamW4bit(bf16_stochastic_round=True); torch.cuda.amp.autocast()
    -> O1 float16 torch; scaler.enabled=False
# torchtitan/config/configs.py, torchtitan/models/llama3/parallelize.py: FSDP2 on one device, too
torchtitan.Trainer.Config() -> O2 bfloat16 torch; step.clip_norm=1.0
torchtitan.TrainingConfig(max_norm=0.5) -> O2 bfloat16 torch; step.clip_norm=0.5
torchtitan.TrainingConfig(dtype='bfloat16', global_batch_size=8)
    -> O2 bfloat16 torch; step.clip_norm=1.0; policy.masters='none'
torchtitan.TrainingConfig(mixed_precision_param='float32') -> O0; step.clip_norm=1.0
torchtitan.OptimizersContainer.Config(implementation='fused_opt_states_bf16');
    torchtitan.Trainer.Config()
    -> O2 bfloat16 torch; step.clip_norm=1.0; policy.slots='bfloat16'
# apex/amp/frontend.py: the table of opt_levels
apex.amp.initialize() -> O1 float16 torch; APEX_O1
apex.amp.initialize(opt_level='O0') -> O0; scaler.enabled=False
apex.amp.initialize(opt_level='O2') -> O2 float16 torch; scaler.like='apex'; policy.masters='float32'
apex.amp.initialize(opt_level='O3') -> O2 float16 torch; scaler.enabled=False; policy.masters='none'
apex.amp.initialize(enabled=False) -> O0; scaler.enabled=False
apex.amp.initialize(opt_level='O2', loss_scale='128.0')
    -> O2 float16 torch; scaler.like='apex'; policy.masters='float32'; scaler.init_scale=128.0;
    scaler.dynamic=False
apex.amp.initialize(max_loss_scale=16384.0, min_loss_scale=1)
    -> O1 float16 torch; APEX_O1; scaler.init_scale=16384.0; scaler.max_scale=16384.0;
    scaler.min_scale=1.0
apex.amp.register_float_function(module=torch, name='sigmoid');
    apex.amp.register_half_function(module=torch.nn.functional, name='gelu');
    apex.amp.initialize(cast_model_outputs=torch.float32)
    -> O1 float16 torch; scaler.like='apex';
    policy.deny=['ctc_loss', 'grid_sample', 'sigmoid', 'std', 'var']; policy.allow=['gelu'];
    policy.output_dtype='float32'
# lightning/fabric/connector.py: precisions and what older ones became
lightning.pytorch.Trainer() -> O0
lightning.pytorch.Trainer(precision=16) -> O1 float16 torch; scaler.like='torch'
lightning.pytorch.Trainer(precision='bf16') -> O1 bfloat16 torch
lightning.fabric.Fabric(precision='16-true')
    -> O2 float16 torch; scaler.enabled=False; policy.masters='none'
lightning.fabric.Fabric(precision='bf16-true') -> O2 bfloat16 torch; policy.masters='none'
lightning.fabric.Fabric(precision='16-mixed', accelerator='cpu') -> O1 bfloat16 torch
lightning.pytorch.Trainer(precision='16-mixed', accumulate_grad_batches=8, gradient_clip_val=0.5)
    -> O1 float16 torch; scaler.like='torch'; step.accumulate=8; step.clip_norm=0.5
torch.amp.GradScaler(init_scale=8192);
    lightning.pytorch.plugins.MixedPrecision(precision='16-mixed', device='cuda');
    lightning.pytorch.Trainer(plugins=UNKNOWN)
    -> O1 float16 torch; scaler.like='torch'; scaler.init_scale=8192.0
lightning.pytorch.Trainer(precision=16, amp_backend='apex', amp_level='O1') -> O1 float16 torch; APEX_O1
# accelerate/accelerator.py, transformers/training_args.py
accelerate.Accelerator(mixed_precision='no') -> O0
accelerate.Accelerator(mixed_precision='fp16') -> O1 float16 torch; scaler.like='torch'
accelerate.Accelerator(mixed_precision='bf16', gradient_accumulation_steps=4)
    -> O1 bfloat16 torch; step.accumulate=4
accelerate.GradScalerKwargs(init_scale=512.0, growth_interval=100);
    accelerate.GradientAccumulationPlugin(num_steps=3); accelerate.Accelerator(mixed_precision='fp16');
    accelerate.Accelerator.clip_grad_norm_(max_norm=1.0)
    -> O1 float16 torch; scaler.like='torch'; scaler.init_scale=512.0; scaler.growth_interval=100;
    step.accumulate=3; step.clip_norm=1.0
accelerate.Accelerator(mixed_precision='bf16', fsdp_plugin=UNKNOWN) -> O2 bfloat16 torch
transformers.TrainingArguments(fp16=True) -> O1 float16 torch; scaler.like='torch'; step.clip_norm=1.0
transformers.TrainingArguments(bf16=True, max_grad_norm=0.0) -> O1 bfloat16 torch
transformers.TrainingArguments(gradient_accumulation_steps=2) -> O0; step.accumulate=2; step.clip_norm=1.0
transformers.TrainingArguments(fp16=True, half_precision_backend='apex', fp16_opt_level='O2')
    -> O2 float16 torch; scaler.like='apex'; policy.masters='float32'; step.clip_norm=1.0
# mmengine/optim/optimizer/amp_optimizer_wrapper.py
mmengine.AmpOptimWrapper() -> O1 float16 torch; scaler.like='torch'
mmengine.AmpOptimWrapper(loss_scale=512.0, dtype=torch.bfloat16)
    -> O1 bfloat16 torch; scaler.like='torch'; scaler.init_scale=512.0; scaler.dynamic=False
mmengine.AmpOptimWrapper(loss_scale={'init_scale': 8}, clip_grad={'max_norm': 35}, accumulative_counts=2)
    -> O1 float16 torch; scaler.like='torch'; scaler.init_scale=8.0; step.clip_norm=35.0;
    step.accumulate=2
deepspeed.initialize(config={'fp16': {'enabled': True}})
    -> O2 float16 torch; scaler.like='deepspeed'; step.clip_norm=1.0; scaler.init_scale=65536.0;
    scaler.growth_interval=1000; scaler.min_scale=1.0; scaler.backoff_interval=1;
    scaler.at_min_scale='stay'
deepspeed.initialize(config={'fp16': {'enabled': True}, 'zero_optimization': {'stage': 2},
    'gradient_clipping': 1.0})
    -> O2 float16 torch; scaler.like='deepspeed'; step.clip_norm=1.0; scaler.init_scale=65536.0;
    scaler.growth_interval=1000; scaler.min_scale=1.0; scaler.backoff_interval=2;
    scaler.backoff_count='until_growth'
deepspeed.initialize(config={'fp16': {'enabled': 'true', 'initial_scale_power': 12,
    'loss_scale_window': 500, 'hysteresis': 4, 'consecutive_hysteresis': True, 'min_loss_scale': 2},
    'zero_optimization': {'stage': 2}, 'gradient_clipping': 1.0})
    -> O2 float16 torch; scaler.like='deepspeed'; step.clip_norm=1.0; scaler.init_scale=4096.0;
    scaler.growth_interval=500; scaler.min_scale=2.0; scaler.backoff_interval=4;
    scaler.backoff_count='until_finite'
deepspeed.initialize(config={'fp16': {'enabled': True, 'loss_scale': 128}})
    -> O2 float16 torch; scaler.like='deepspeed'; step.clip_norm=1.0; scaler.init_scale=128.0;
    scaler.dynamic=False
deepspeed.initialize(config={'fp16': {'enabled': True, 'loss_scale': 0.5}})
    -> O2 float16 torch; scaler.like='deepspeed'; step.clip_norm=1.0; scaler.init_scale=0.5;
    scaler.dynamic=False; scaler.min_scale=0.5
deepspeed.initialize(config={'bf16': {'enabled': True}, 'gradient_clipping': 0,
    'gradient_accumulation_steps': 8})
    -> O2 bfloat16 torch; step.accumulate=8
deepspeed.initialize(config={'bfloat16': {'enabled': True, 'bf16_master_weights_and_grads': True}})
    -> O2 bfloat16 torch; policy.masters='none'; step.clip_norm=1.0
deepspeed.initialize(config={'bf16': {'enabled': True, 'bf16_master_weights_and_grads': True,
    'bf16_optimizer_states': True}, 'torch_autocast': {'enabled': True, 'dtype': 'bfloat16'}})
    -> O2 bfloat16 torch; policy.masters='none'; policy.slots='bfloat16'; step.clip_norm=1.0
deepspeed.initialize(config={'torch_autocast': {'enabled': True, 'dtype': 'bfloat16'}})
    -> O1 bfloat16 torch; step.clip_norm=1.0
deepspeed.initialize(config={'torch_autocast': {'enabled': True}})
    -> O1 float16 torch; scaler.like='torch'; step.clip_norm=1.0
deepspeed.initialize(config={'fp16': {'enabled': True}, 'torch_autocast': {'enabled': True}})
    -> O2 float16 torch; scaler.like='torch'; step.clip_norm=1.0
deepspeed.initialize(config={'amp': {'enabled': True, 'opt_level': 'O1'}})
    -> O1 float16 torch; APEX_O1; step.clip_norm=1.0
deepspeed.initialize(config={'fp16': {'enabled': False}}) -> O0; step.clip_norm=1.0
deepspeed.initialize(config={'train_batch_size': 8, 'train_micro_batch_size_per_gpu': 8,
    'zero_optimization': True})
    -> O0; step.clip_norm=1.0
"""


@pytest.mark.parametrize(("calls", "expected"), cases(SETTINGS))
def test_settings(calls, expected):
    draft, settings = read(calls), settings_of(expected)
    assert draft.settings == settings
    assert draft.unknown == {}
    sections = {}
    for key, value in settings.items():
        sections.setdefault(key.partition(".")[0], {})[key.partition(".")[2]] = value
    Recipe.from_dict(sections)  # what was read can be made


FINDINGS = """
torch.autocast(device_type='cpu') -> lost: softmax, layer_norm, exp, sum
torch.cuda.amp.autocast(dtype=torch.float32) -> ignored: switches itself off
torch.cuda.amp.autocast(cache_enabled=False) -> note: cache_enabled
torch.cuda.amp.autocast(); torch.cuda.amp.autocast(enabled=False) -> lost: A region in float32
torch.cuda.amp.autocast(enabled=False); torch.cuda.amp.autocast() -> lost: A region in float32
torch.cuda.amp.autocast(); torch.amp.GradScaler(); torch.nn.utils.clip_grad_norm_(max_norm=1.0)
    -> lost: It clips gradients that are still scaled
torch.amp.custom_fwd(device_type='cuda', cast_inputs=torch.float32) -> note: to float32
torch.set_autocast_gpu_dtype(value=torch.bfloat16) -> lost: that name no dtype
torch.amp.GradScaler.update(new_scale=2.0) -> lost: sets the scale by hand
torch.nn.utils.clip_grad_norm_(max_norm=1.0, norm_type='inf') -> lost: by the inf-norm
torch.nn.Module.half() -> lost: losses in float16 too
torchao.optim._AdamW(bf16_stochastic_round=True) -> note: squares cannot shrink
torchao.optim.AdamWFp8(bf16_stochastic_round=True) -> lost: Slots in 8 bits
torchao.optim._AdamW(bf16_stochastic_round=True); torch.cuda.amp.autocast()
    -> ignored: on bfloat16 weights alone
torchtitan.OptimizersContainer.Config(implementation='fused_opt_states_bf16');
    torchtitan.TrainingConfig(mixed_precision_param='float32')
    -> lost: at O2 alone
torchtitan.TrainingConfig(dtype='bfloat16', mixed_precision_param='float32') -> lost: computes in float32
torchtitan.components.quantization.NVFP4LinearConverter.Config() -> lost: 8 bits or fewer
apex.amp.initialize(loss_scale=128.0) -> lost: applies infinite gradients
apex.amp.initialize(num_losses=3) -> lost: 3 losses
apex.amp.initialize(opt_level='O3') -> lost: Batch normalization has float16 weights
apex.amp.initialize(opt_level='02') -> note: no opt_level '02'
apex.amp.float_function() -> lost: A function of one's own
apex.amp.register_float_function(module=None, name='f') -> lost: of one's own
lightning.fabric.Fabric(precision='transformer-engine') -> lost: in 8 bits
lightning.fabric.Fabric(precision='64-true') -> lost: float64
lightning.fabric.Fabric(precision='16-mixed', accelerator='cpu') -> ignored: bf16-mixed for 16-mixed
lightning.pytorch.Trainer(accumulate_grad_batches={0: 1, 4: 8}) -> lost: epoch
accelerate.Accelerator(mixed_precision='fp8') -> lost: in 8 bits
accelerate.Accelerator() -> note: accelerate config
accelerate.Accelerator(mixed_precision='fp16', cpu=True) -> ignored: no fp16 on a CPU
accelerate.AutocastKwargs(enabled=False) -> lost: in float32
transformers.TrainingArguments(deepspeed='ds.json') -> note: own configuration
deepspeed.initialize(config='ds.json') -> note: A file has the precision
deepspeed.initialize(config={'fp16': {'enabled': True, 'hysteresis': 3}})
    -> ignored: take no notice of hysteresis
deepspeed.initialize(config={'bf16': {'enabled': True}, 'torch_autocast': {'enabled': True,
    'dtype': 'float16'}})
    -> lost: one low precision
deepspeed.initialize(config={'fp16': {'enabled': True}, 'torch_autocast': {'enabled': True}})
    -> note: divides the gradients
deepspeed.initialize(config={'amp': {'enabled': True}, 'torch_autocast': {'enabled': True}})
    -> note: refuses torch_autocast and amp
lightning.pytorch.Trainer(precision='16-mixed', strategy='deepspeed_stage_2')
    -> note: DeepSpeed casts the model
"""


@pytest.mark.parametrize(("calls", "expected"), cases(FINDINGS))
def test_findings(calls, expected):
    kind, _, says = expected.partition(": ")
    assert [f.kind for f in read(calls).findings if says in f.message] == [kind]


UNKNOWN = """
torch.autocast(device_type=UNKNOWN) ->
torch.autocast(device_type=UNKNOWN, dtype=torch.float16) ->
torch.cuda.amp.autocast(enabled=UNKNOWN) -> policy.level
torch.cuda.amp.autocast(dtype=UNKNOWN) -> policy.dtype
torch.amp.GradScaler() -> policy.level
torch.cuda.amp.autocast(); torch.amp.GradScaler(init_scale=UNKNOWN) -> scaler.init_scale
torch.cuda.amp.autocast(); torch.amp.GradScaler(enabled=UNKNOWN) -> scaler.enabled
torch.nn.utils.clip_grad_norm_(max_norm=UNKNOWN) -> step.clip_norm
torchao.optim._AdamW(bf16_stochastic_round=UNKNOWN) -> policy.masters
torchtitan.TrainingConfig(global_batch_size=64) -> step.accumulate
torchtitan.TrainingConfig(dtype=UNKNOWN) -> policy.dtype policy.level
apex.amp.initialize(opt_level=UNKNOWN) -> policy.level scaler.enabled
apex.amp.initialize(loss_scale=UNKNOWN) -> scaler.dynamic scaler.init_scale
lightning.pytorch.Trainer(precision=UNKNOWN) -> policy.dtype policy.level
lightning.pytorch.Trainer(precision=True) -> policy.dtype policy.level
lightning.fabric.Fabric(plugins=UNKNOWN) -> policy.dtype policy.level
lightning.fabric.Fabric(precision='bf16-mixed', strategy=UNKNOWN) ->
lightning.fabric.Fabric(precision='transformer-engine') -> policy.level
accelerate.Accelerator() -> policy.dtype policy.level
accelerate.Accelerator(mixed_precision='fp8') -> policy.level
transformers.TrainingArguments(fp16=UNKNOWN) -> policy.dtype policy.level
deepspeed.initialize(config=UNKNOWN) -> policy.level
deepspeed.initialize(config={'fp16': {'enabled': True, 'initial_scale_power': UNKNOWN},
    'gradient_clipping': 'auto'})
    -> scaler.init_scale step.clip_norm
deepspeed.initialize(config={'bf16': {'enabled': True}, 'train_batch_size': 64,
    'train_micro_batch_size_per_gpu': 4})
    -> step.accumulate
lightning.pytorch.Trainer(precision='16-mixed', strategy='deepspeed_stage_2') -> policy.level
"""


@pytest.mark.parametrize(("calls", "unknown"), cases(UNKNOWN))
def test_what_cannot_be_known(calls, unknown):
    draft = read(calls)
    assert set(draft.unknown) == {*unknown.split()}
    assert set(draft.unknown).isdisjoint(draft.settings)


@pytest.mark.parametrize(
    "calls",
    [
        "torch.cuda.amp.autocast(enabled=use_amp)",
        "torch.cuda.amp.autocast(); torch.amp.GradScaler(); torch.amp.GradScaler.unscale_(); "
        "torch.nn.utils.clip_grad_norm_(max_norm=1.0)",
        "deepspeed.initialize(config={'bf16': {'enabled': True}, 'gradient_clipping': 1.0, "
        "'torch_autocast': {'enabled': True, 'dtype': 'bfloat16'}})",
    ],
)
def test_nothing_is_told_where_nothing_is_lost(calls):
    assert read(calls).findings == []


def test_a_region_that_is_never_on_says_nothing_of_the_training_around_it():
    draft = read("torch.cuda.amp.autocast(enabled=False)")
    assert draft.settings == draft.unknown == {}


def test_unknown_arguments_may_hold_any_setting():
    draft = Draft()
    torch = next(each for each in DIALECTS if each.framework == "torch")
    torch.calls["torch.amp.GradScaler"][1](
        Call("torch.amp.GradScaler", HERE, {}, unpacked=ELSEWHERE), draft
    )
    expected = {"init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled"}
    assert {f"scaler.{name}" for name in expected} <= set(draft.unknown)


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
                given = Argument(HERE, lambda: odd)
                with suppress(*IMPOSSIBLE):
                    handler(Call(name, HERE, {parameter: given}), Draft())
