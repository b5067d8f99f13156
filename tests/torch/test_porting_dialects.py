"""What the porting dialects say of torch, Accelerate and Lightning, held against the libraries."""

import inspect
from dataclasses import fields
from importlib import import_module

import pytest
import torch

from ampbridge.scaling.presets import preset
from ampbridge_port.reader.dialects import DIALECTS, hugging_face
from ampbridge_port.reader.dialects import lightning as lightning_dialect
from ampbridge_port.reader.dialects import torch as dialect

SIGNATURES = {name: call[0].split() for each in DIALECTS for name, call in each.calls.items()}
OF_MMENGINE = "mmengine."
FUNCTIONS = [
    "torch.autocast",
    "torch.cuda.amp.autocast",
    "torch.cpu.amp.autocast",
    "torch.amp.custom_fwd",
    "torch.cuda.amp.custom_fwd",
    "torch.amp.GradScaler",
    "torch.cuda.amp.GradScaler",
    "torch.cpu.amp.GradScaler",
    "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler",
    "torch.amp.GradScaler.update",
    "torch.amp.GradScaler.step",
    "torch.amp.GradScaler.unscale_",
    "torch.amp.GradScaler.set_growth_factor",
    "torch.amp.GradScaler.set_backoff_factor",
    "torch.amp.GradScaler.set_growth_interval",
    "torch.nn.utils.clip_grad_norm_",
    "torch.nn.utils.clip_grad_value_",
]


def found(qualified):
    """The object of that name; modules on the way are imported."""
    root, *path = qualified.split(".")
    place = import_module(root)
    for i, part in enumerate(path):
        if not hasattr(place, part):
            import_module(".".join([root, *path[: i + 1]]))
        place = getattr(place, part)
    return place


def parameters(function):
    named = inspect.signature(function).parameters.values()
    return [
        p.name
        for p in named
        if p.name != "self" and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_parameters_stand_in_torchs_order(name):
    assert list(SIGNATURES[name]) == parameters(found(name))


@pytest.mark.parametrize(
    "alias",
    [
        each
        for each in dialect.DIALECT.aliases
        if each != "torch.nn.utils.clip_grad_norm" and not each.startswith(OF_MMENGINE)
    ],
)
def test_aliases_are_the_same_objects(alias):
    assert found(alias) is found(dialect.DIALECT.aliases[alias])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_module_defines_is_known_by_the_name_that_a_package_above_exports(name):
    there = found(name)
    written = f"{there.__module__}.{there.__qualname__}"
    assert dialect.DIALECT.resolve(written) == dialect.DIALECT.resolve(name) == name


@pytest.mark.parametrize("device", ["cuda", "cpu", "xpu", "mps", "xla", "hpu", "mtia", "maia"])
def test_the_dtype_of_a_region_that_names_none(device):
    usual = dialect.LOW_BY_DEVICE.get(device, "float16")
    assert torch.get_autocast_dtype(device) == getattr(torch, usual)


@pytest.mark.parametrize("name", ["MixedPrecision", "MixedPrecisionPolicy"])
def test_the_first_parameters_of_fsdps_precisions(name):
    qualified = f"torch.distributed.fsdp.{name}"
    ours = SIGNATURES[qualified]
    assert ours == parameters(found(qualified))[: len(ours)]


def test_autocast_to_float32_is_switched_off():
    with (
        pytest.warns(UserWarning, match="Disabling autocast"),
        torch.autocast("cpu", torch.float32),
    ):
        assert not torch.is_autocast_enabled("cpu")


def test_the_scalers_defaults_are_the_presets():
    defaults = inspect.signature(torch.amp.GradScaler).parameters
    settings = preset("torch").settings
    assert defaults["init_scale"].default == settings["init_scale"]
    scaler = torch.amp.GradScaler("cpu")
    numbers = (
        scaler.get_growth_factor(),
        scaler.get_backoff_factor(),
        scaler.get_growth_interval(),
    )
    assert numbers == (2.0, 0.5, 2000)


def test_accelerate():
    import accelerate

    real = parameters(accelerate.Accelerator)
    ours = SIGNATURES["accelerate.Accelerator"]
    assert list(ours[:7]) == real[:7]
    assert set(ours) <= set(real)
    for name in ("GradScalerKwargs", "AutocastKwargs"):
        kwargs = getattr(accelerate.utils, name)
        assert [f.name for f in fields(kwargs)] == SIGNATURES[f"accelerate.{name}"]
    numbers = accelerate.utils.GradScalerKwargs()
    assert (numbers.init_scale, numbers.growth_interval) == (65536.0, 2000)
    assert set(hugging_face.PRECISIONS) == {"no", "fp16", "bf16"}
    assert set(accelerate.utils.PrecisionType.list()) == {*hugging_face.PRECISIONS, "fp8"}


def test_lightning():
    import lightning_fabric as fabric
    from lightning_fabric.plugins.precision import precision

    real = parameters(fabric.Fabric.__init__)
    assert SIGNATURES["lightning.fabric.Fabric"] == real[:6]
    assert precision._PRECISION_INPUT_STR_ALIAS_CONVERSION == lightning_dialect.SHORT
    known = {*lightning_dialect.MIXED, *lightning_dialect.PURE, "32-true", "64-true"}
    all_precisions = set(precision._PRECISION_INPUT_STR.__args__)
    assert known <= all_precisions
    assert all_precisions - known == {"transformer-engine", "transformer-engine-float16"}
    clip = parameters(fabric.Fabric.clip_gradients)
    assert SIGNATURES["lightning.fabric.Fabric.clip_gradients"] == clip


@pytest.mark.parametrize("name", ["16-true", "bf16-true"])
def test_lightnings_true_precisions_cast_the_model(name):
    import lightning_fabric as fabric

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2))
    made = fabric.Fabric(accelerator="cpu", precision=name).setup_module(model)
    wanted = getattr(torch, lightning_dialect.PURE[name])
    assert {p.dtype for p in made.parameters()} == {wanted}
