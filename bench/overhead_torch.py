"""The torch side of overhead.py: hand-written loops, ampbridge, Accelerate and Lightning Fabric."""

from __future__ import annotations

import copy
import importlib
import itertools
import logging
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from overhead import Case, Shape, Step, batch_of
from torch import nn

import ampbridge as amp

torch.set_num_threads(1)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Without AVX512-FP16 float16's GEMMs are loops on a CPU, which would hide any overhead.
DTYPE = torch.float16 if DEVICE == "cuda" else torch.bfloat16
NAME = str(DTYPE).removeprefix("torch.")


def device() -> str:
    return torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU, 1 thread"


class Transformer(nn.Module):
    """An encoder over tokens, pooled and classified."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            shape.width, 4, 4 * shape.width, dropout=0.0, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, shape.layers, enable_nested_tensor=False)
        self.head = nn.Linear(shape.width, shape.classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x).mean(1))


def model_of(shape: Shape) -> nn.Module:
    torch.manual_seed(0)
    if shape.tokens:
        return Transformer(shape).to(DEVICE)
    widths = [shape.features, *[shape.width] * shape.layers]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(shape.width, shape.classes)).to(DEVICE)


def loss_fn(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def finished(step: Step) -> Step:
    """On a GPU a step counts when the device has done it."""
    if DEVICE == "cpu":
        return step

    def synchronised() -> None:
        step()
        torch.cuda.synchronize()

    return synchronised


def native(model: nn.Module, x: torch.Tensor, y: torch.Tensor, scaled: bool) -> Step:
    """The loop of torch's own documentation."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(DEVICE, enabled=scaled)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, dtype=DTYPE):
            loss = loss_fn(model, x, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def bridged(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, policy: amp.Policy, scaled: bool
) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = amp.GradScaler(enabled=scaled)
    step = amp.train_step(loss_fn, model, optimizer, policy=policy, scaler=scaler)
    return lambda: step(x, y)


def accelerated(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Step | None:
    try:
        from accelerate import Accelerator
    except ImportError:
        return None
    precision = "fp16" if DEVICE == "cuda" else "bf16"
    accelerator = Accelerator(mixed_precision=precision, cpu=DEVICE == "cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer = accelerator.prepare(model, optimizer)

    def step() -> None:
        optimizer.zero_grad()
        with accelerator.autocast():
            loss = loss_fn(model, x, y)
        accelerator.backward(loss)
        optimizer.step()

    return step


def lightning_fabric() -> Any:
    """Fabric from its own package, or from the one of all of Lightning."""
    for name in ("lightning_fabric", "lightning.fabric"):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of its own imports
                return importlib.import_module(name)
        except ImportError:
            continue
    return None


def fabricated(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Step | None:
    fabric_module = lightning_fabric()
    if fabric_module is None:
        return None
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
    precision = "16-mixed" if DEVICE == "cuda" else "bf16-mixed"
    fabric = fabric_module.Fabric(accelerator=DEVICE, devices=1, precision=precision)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer = fabric.setup(model, optimizer)

    def step() -> None:
        optimizer.zero_grad()
        with fabric.autocast():
            loss = loss_fn(model, x, y)
        fabric.backward(loss)
        optimizer.step()

    return step


POLICIES = {
    'lists="native"': amp.Policy("O1", NAME, lists="native"),
    "default lists": amp.Policy("O1", NAME, execution="native"),
    'deny=["gelu", "relu"]': amp.Policy("O1", NAME, deny=["gelu", "relu"], execution="native"),
}


def cases(shape: Shape, workload: str) -> Iterator[Case]:
    arrays = batch_of(shape)
    x, y = (torch.from_numpy(array).to(DEVICE) for array in arrays)
    fresh = model_of(shape)
    for scaled in (False, True):
        if DEVICE == "cuda" and not scaled:
            continue  # float16 is never trained unscaled
        makers: dict[str, Callable[[nn.Module], Step | None]] = {
            "native loop": partial(native, x=x, y=y, scaled=scaled)
        }
        for name, policy in POLICIES.items():
            makers[f"ampbridge, {name}"] = partial(bridged, x=x, y=y, policy=policy, scaled=scaled)
        if not scaled or DEVICE == "cuda":
            makers["Accelerate"] = partial(accelerated, x=x, y=y)
            makers["Lightning Fabric"] = partial(fabricated, x=x, y=y)
        makers["native loop, again"] = makers["native loop"]
        yield Case(
            f"{NAME}, {'with' if scaled else 'no'} scaler",
            {name: partial(made_by, maker, fresh) for name, maker in makers.items()},
        )


def made_by(maker: Callable[[nn.Module], Step | None], fresh: nn.Module) -> Step | None:
    """A step over a copy of ``fresh``."""
    step = maker(copy.deepcopy(fresh))
    return step and finished(step)
