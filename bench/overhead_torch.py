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
from models_of_others import TASKS, Task
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


def native(task: Task, scaled: bool, compiled: bool = False) -> Step:
    """The loop of torch's own documentation; ``compiled`` says whether the loss is."""
    model, loss_fn, batch = task
    loss_fn = torch.compile(loss_fn) if compiled else loss_fn
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(DEVICE, enabled=scaled)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, dtype=DTYPE):
            loss = loss_fn(model, *batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def bridged(task: Task, policy: amp.Policy, scaled: bool, compiled: bool = False) -> Step:
    model, loss_fn, batch = task
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = amp.GradScaler(enabled=scaled)
    step = amp.train_step(loss_fn, model, optimizer, policy=policy, scaler=scaler, compile=compiled)
    return lambda: step(*batch)


def accelerated(task: Task) -> Step | None:
    try:
        from accelerate import Accelerator
    except ImportError:
        return None
    precision = "fp16" if DEVICE == "cuda" else "bf16"
    accelerator = Accelerator(mixed_precision=precision, cpu=DEVICE == "cpu")
    model, loss_fn, batch = task
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer = accelerator.prepare(model, optimizer)

    def step() -> None:
        optimizer.zero_grad()
        with accelerator.autocast():
            loss = loss_fn(model, *batch)
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


def fabricated(task: Task) -> Step | None:
    fabric_module = lightning_fabric()
    if fabric_module is None:
        return None
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
    precision = "16-mixed" if DEVICE == "cuda" else "bf16-mixed"
    fabric = fabric_module.Fabric(accelerator=DEVICE, devices=1, precision=precision)
    model, loss_fn, batch = task
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer = fabric.setup(model, optimizer)

    def step() -> None:
        optimizer.zero_grad()
        with fabric.autocast():
            loss = loss_fn(model, *batch)
        fabric.backward(loss)
        optimizer.step()

    return step


POLICIES = {
    'lists="native"': amp.Policy("O1", NAME, lists="native"),
    "default lists": amp.Policy("O1", NAME, execution="native"),
}
DENIED = {
    'deny=["gelu", "relu"]': amp.Policy("O1", NAME, deny=["gelu", "relu"], execution="native")
}
COMPILED = ("tiny", "bert")
"""Workloads that are compiled as well; Inductor takes minutes for larger ones on a CPU."""
O2 = {"O2": amp.Policy("O2", NAME, execution="native")}


def cases(shape: Shape | None, workload: str) -> Iterator[Case]:
    """Of an own model of ``shape``, or of one from outside."""
    torch.manual_seed(0)
    if shape is None:
        fresh, policies = TASKS[workload](), {**POLICIES, **O2}
    else:
        x, y = (torch.from_numpy(array) for array in batch_of(shape))
        fresh, policies = Task(model_of(shape), loss_fn, (x, y)), {**POLICIES, **DENIED}
    for scaled in (False, True):
        if DEVICE == "cuda" and not scaled:
            continue  # float16 is never trained unscaled
        makers: dict[str, Callable[[Task], Step | None]] = {
            "native loop": partial(native, scaled=scaled)
        }
        for name, policy in policies.items():
            makers[f"ampbridge, {name}"] = partial(bridged, policy=policy, scaled=scaled)
        if workload in COMPILED and not scaled:
            makers["native loop, compiled loss"] = partial(native, scaled=scaled, compiled=True)
            for name, policy in POLICIES.items():
                makers[f"ampbridge, {name}, compile=True"] = partial(
                    bridged, policy=policy, scaled=scaled, compiled=True
                )
        if not scaled or DEVICE == "cuda":
            makers["Accelerate"] = accelerated
            makers["Lightning Fabric"] = fabricated
        makers["native loop, again"] = makers["native loop"]
        yield Case(
            f"{NAME}, {'with' if scaled else 'no'} scaler",
            {name: partial(made_by, maker, fresh) for name, maker in makers.items()},
        )


def made_by(maker: Callable[[Task], Step | None], fresh: Task) -> Step | None:
    """A step over a copy of ``fresh``."""
    batch = tuple(each.to(DEVICE) for each in fresh.batch)
    step = maker(Task(copy.deepcopy(fresh.model).to(DEVICE), fresh.loss_fn, batch))
    return step and finished(step)
