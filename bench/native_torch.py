"""What is torch's own: loops by hand with its AMP, with Accelerate and with Lightning Fabric; models of
transformers and diffusers, with random weights.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from measuring import Maker, Step
from steps import Fresh, Shape, Task, beside, bridged, by_hand, looped, pooled
from torch import Tensor, nn

import ampbridge as amp

sys.path.append(str(Path(__file__).parents[1] / "tests"))

import torchvision_ops

_declared = torchvision_ops.declare()  # ahead of what imports torchvision

torch.set_num_threads(1)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Without AVX512-FP16 float16's GEMMs are loops on a CPU, which would hide any overhead.
DTYPE = torch.float16 if DEVICE == "cuda" else torch.bfloat16
NAME = str(DTYPE).removeprefix("torch.")
POLICIES = {
    'ampbridge, lists="native"': amp.Policy("O1", NAME, lists="native"),
    "ampbridge, default lists": amp.Policy("O1", NAME, execution="native"),
}
DEFAULT = POLICIES["ampbridge, default lists"]
DENIED = {'ampbridge, deny=["gelu", "relu"]': DEFAULT.replace(deny=["gelu", "relu"])}
O2 = {"ampbridge, O2": DEFAULT.replace(level="O2")}
COMPILED = ("tiny", "bert")
"""Workloads that are compiled as well; Inductor takes minutes for larger ones on a CPU."""
Module, loop = nn.Module, by_hand
device = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU, 1 thread"
wait = None if DEVICE == "cpu" else torch.cuda.synchronize
own_scaler = partial(torch.amp.GradScaler, DEVICE)


def classified(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def task(model: nn.Module, x: np.ndarray, y: np.ndarray) -> Task:
    return on_device(model, classified, torch.from_numpy(x), torch.from_numpy(y))


def on_device(model: nn.Module, loss_fn: Callable[..., Tensor], *batch: Tensor) -> Task:
    return Task(model.to(DEVICE), loss_fn, tuple(each.to(DEVICE) for each in batch))


def transformer(shape: Shape) -> nn.Module:
    torch.manual_seed(0)
    width = shape.width
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, shape.layers, enable_nested_tensor=False)
    return pooled(nn.Module, encoder, nn.Linear(width, shape.classes))


# -- loops


def mixed_loop(fresh: Fresh, scaled: bool, compiled: bool = False) -> Step:
    """The loop of torch's documentation; ``compiled`` says whether the loss is."""
    model, loss_fn, batch, adamw = fresh()
    loss_fn = torch.compile(loss_fn) if compiled else loss_fn

    def forward() -> Tensor:
        with torch.autocast(DEVICE, dtype=DTYPE):
            return loss_fn(model, *batch)

    return looped(forward, adamw(model), own_scaler(enabled=scaled))


def accelerated(fresh: Fresh) -> Step | None:
    try:
        from accelerate import Accelerator
    except ImportError:
        return None
    precision = "fp16" if DEVICE == "cuda" else "bf16"
    accelerator = Accelerator(mixed_precision=precision, cpu=DEVICE == "cpu")
    return _loop_of(accelerator, accelerator.prepare, fresh())


def fabricated(fresh: Fresh) -> Step | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own imports
            import lightning_fabric
    except ImportError:
        return None
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
    precision = "16-mixed" if DEVICE == "cuda" else "bf16-mixed"
    fabric = lightning_fabric.Fabric(accelerator=DEVICE, devices=1, precision=precision)
    return _loop_of(fabric, fabric.setup, fresh())


def _loop_of(library: Any, prepare: Callable[..., Any], task: Task) -> Step:
    loss_fn, batch = task.loss_fn, task.batch
    model, optimizer = prepare(task.model, task.adamw(task.model))

    def step() -> None:
        optimizer.zero_grad()
        with library.autocast():
            loss = loss_fn(model, *batch)
        library.backward(loss)
        optimizer.step()

    return step


def compared(
    fresh: Fresh,
    scaled: bool,
    policies: Mapping[str, amp.Policy] = POLICIES,
    more: Mapping[str, Maker] = {},
) -> dict[str, Maker]:
    by_torch = partial(mixed_loop, fresh, scaled)
    return beside("native loop", by_torch, fresh, policies, scaled, more)


def cases(fresh: Fresh, workload: str) -> Iterator[tuple[str, Mapping[str, Maker]]]:
    policies = {**POLICIES, **(O2 if workload in MODELS_OF_OTHERS else DENIED)}
    for scaled in (False, True):
        if DEVICE == "cuda" and not scaled:
            continue  # float16 is never trained unscaled
        more: dict[str, Maker] = {}
        if workload in COMPILED and not scaled:
            more["native loop, compiled loss"] = partial(mixed_loop, fresh, False, compiled=True)
            for name, policy in POLICIES.items():
                more[f"{name}, compile=True"] = partial(bridged, fresh, policy, False, compile=True)
        if not scaled or DEVICE == "cuda":
            more |= {
                "Accelerate": partial(accelerated, fresh),
                "Lightning Fabric": partial(fabricated, fresh),
            }
        title = f"{NAME}, {'with' if scaled else 'no'} scaler"
        yield title, compared(fresh, scaled, policies, more)


# -- models of others


def of_others(workload: str) -> Task:
    torch.manual_seed(0)
    return on_device(*MODELS_OF_OTHERS[workload]())


SMALL = {"vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


def bert() -> tuple[Any, ...]:
    """An encoder of two layers, 41 parameters, that classifies 4 x 32 tokens."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(**SMALL, intermediate_size=512, num_labels=4)
    tokens = torch.randint(0, 1000, (4, 32))
    return BertForSequenceClassification(config), labelled_loss, tokens, tokens[:, 0] % 4


def llama() -> tuple[Any, ...]:
    """A decoder of two layers that learns the next token of 4 x 32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**SMALL, intermediate_size=256, num_key_value_heads=2)
    tokens = torch.randint(0, 1000, (4, 32))
    return LlamaForCausalLM(config), labelled_loss, tokens, tokens


def unet() -> tuple[Any, ...]:
    """A UNet with attention that denoises 4 images of 32 x 32."""
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=32,
        in_channels=3,
        out_channels=3,
        block_out_channels=(32, 64),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    return model, denoising_loss, torch.randn(4, 3, 32, 32), torch.arange(4)


class ManyParameters(nn.Module):
    """So many parameters of 16 numbers each, of which two ops make the loss.

    Their kernels cost next to nothing, so that a step's time is that of its host code.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.each = nn.ParameterList([torch.randn(16) for _ in range(count)])

    def forward(self, x: Tensor) -> Tensor:
        return (torch.cat(list(self.each)).reshape(-1, 16) * x).sum()


def many(count: int = 1000) -> tuple[Any, ...]:
    return ManyParameters(count), lambda model, x: model(x), torch.randn(16)


def labelled_loss(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    return model(tokens, labels=labels).loss


def denoising_loss(model: nn.Module, images: Tensor, times: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(images, times).sample, images)


MODELS_OF_OTHERS = {"bert": bert, "llama": llama, "unet": unet, "many": many}


# -- parts of sweep.py's models


def weight(model: nn.Module, *shape: int) -> nn.Parameter:
    return nn.Parameter(torch.full(shape, 1 / shape[-1]))


def ops(model: Any) -> dict[str, Any]:
    return {
        "relu": torch.relu,
        "linear": lambda x: F.linear(x, model.weight),
        "softmax": partial(torch.softmax, dim=-1),
    }
