"""O2 on classes and optimizers of other packages: what stays float32, what is saved, what goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_optimizer
import torch
import torchvision_ops
from accelerate import Accelerator
from prodigyopt import Prodigy
from safetensors.torch import load_file
from schedulefree import AdamWScheduleFree, SGDScheduleFree
from torch import Tensor, nn, optim

import ampbridge as amp

declared = torchvision_ops.declare()  # ahead of what imports torchvision

from peft import LoraConfig, get_peft_model  # noqa: E402
from timm.layers import LayerNorm2d, RmsNorm  # noqa: E402
from torchvision.ops import FrozenBatchNorm2d  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

pytestmark = pytest.mark.quick

LOW = torch.bfloat16
O2 = amp.Policy("O2", "bfloat16", execution="native")
TOKENS = torch.arange(24).reshape(2, 12) % 32


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": 32}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, max_position_embeddings=2048))


def loss_fn(model: nn.Module, tokens: Tensor) -> Tensor:
    return model(tokens, labels=tokens).loss


def step_of(make: Callable[..., optim.Optimizer], policy: Any = O2) -> amp.TrainStep:
    model = llama()
    return amp.train_step(loss_fn, model, make(model.parameters()), policy=policy)


def masters(model: nn.Module) -> dict[str, Tensor]:
    values = amp.backend("torch").read_weights(model)
    return {name: torch.from_numpy(value) for name, value in values.items()}


# -- what stays float32


def test_llama_s_norms_and_rotary_tables() -> None:
    model = llama()
    positions = torch.arange(2048)[None]
    exact = model.model.rotary_emb(torch.zeros(1), positions)[0]
    amp.decorate(model, None, O2)
    for name, parameter in model.named_parameters():
        assert parameter.dtype is (torch.float32 if "norm" in name else LOW), name
    assert torch.equal(model.model.rotary_emb(torch.zeros(1), positions)[0], exact)


@pytest.mark.parametrize("kind", [LayerNorm2d, RmsNorm, FrozenBatchNorm2d])
def test_norms_of_timm_and_torchvision(kind: Callable[[int], nn.Module]) -> None:
    norm = kind(8)
    shape = (2, 4, 8) if kind is RmsNorm else (2, 8, 4, 4)
    x = torch.randn(shape)
    if kind is FrozenBatchNorm2d:
        norm.running_mean.fill_(1e5)
        x = x + 1e5
    expected = norm(x)
    held = dict(norm.state_dict())
    model = nn.Sequential(nn.Identity(), norm)
    amp.decorate(model, None, O2.replace(dtype="float16"))
    assert {name: value.dtype for name, value in norm.state_dict().items()} == {
        name: value.dtype for name, value in held.items()
    }
    assert torch.allclose(norm(x), expected, atol=1e-3)


# -- what is saved


def dtypes(tensors: dict[str, Tensor]) -> set[torch.dtype]:
    return {value.dtype for name, value in tensors.items() if "norm" not in name}


def trained(model: nn.Module) -> amp.TrainStep:
    parameters = [p for p in model.parameters() if p.requires_grad]
    step = amp.train_step(loss_fn, model, optim.AdamW(parameters, 1e-3), policy=O2)
    step(TOKENS)
    return step


def test_save_pretrained(tmp_path: Path) -> None:
    model = llama()
    trained(model)
    model.save_pretrained(tmp_path / "low")
    assert dtypes(load_file(tmp_path / "low/model.safetensors")) == {LOW}
    with amp.undecorated(model):
        model.save_pretrained(tmp_path / "wide")
    saved, exact = load_file(tmp_path / "wide/model.safetensors"), masters(model)
    assert dtypes(saved) == {torch.float32}
    assert all(torch.equal(value, exact[name]) for name, value in saved.items())
    loaded = LlamaForCausalLM.from_pretrained(tmp_path / "wide", dtype="auto")
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}


def test_save_dtype_is_also_that_of_save_pretrained(tmp_path: Path) -> None:
    model = amp.decorate(llama(), None, O2, save_dtype="float32")
    model.save_pretrained(tmp_path)
    assert dtypes(load_file(tmp_path / "model.safetensors")) == {torch.float32}


# peft asks transformers by a name that goes away.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_a_lora_adapter(tmp_path: Path) -> None:
    model = get_peft_model(llama(), LoraConfig(target_modules=["q_proj", "v_proj"], r=4))
    trained(model)
    model.save_pretrained(tmp_path / "low")
    assert dtypes(load_file(tmp_path / "low/adapter_model.safetensors")) == {LOW}
    with amp.undecorated(model):
        model.save_pretrained(tmp_path / "wide")
    saved = load_file(tmp_path / "wide/adapter_model.safetensors")
    assert dtypes(saved) == {torch.float32}
    low = {name: value.to(LOW).float() for name, value in saved.items()}
    assert any(not torch.equal(value, low[name]) for name, value in saved.items())


# -- optimizers of others


@pytest.mark.parametrize("make", [AdamWScheduleFree, SGDScheduleFree])
def test_schedule_free_optimizers_switch_between_their_weights(make: Any) -> None:
    """Their ``eval`` is its own formula, of the masters and the float32 slot ``z``."""
    step = step_of(lambda parameters: make(parameters, lr=1e-2))
    step.optimizer.train()
    for _ in range(5):
        step(TOKENS)
    train, (group, *_) = masters(step.model), step.optimizer.param_groups
    beta = group["betas"][0] if "betas" in group else group["momentum"]
    slots = {n: step.optimizer.state[p]["z"] for n, p in step.model.named_parameters()}
    assert {z.dtype for z in slots.values()} == {torch.float32}
    step.optimizer.eval()
    for name, value in masters(step.model).items():
        if name in slots:
            assert torch.equal(value, train[name].lerp(slots[name], 1 - 1 / beta)), name
    step.optimizer.train()
    for name, value in masters(step.model).items():
        assert torch.allclose(value, train[name], atol=1e-5), name
    assert step(TOKENS).applied


RESUMED: dict[str, Callable[..., optim.Optimizer]] = {
    "Prodigy": lambda parameters: Prodigy(parameters, lr=1.0),
    "AdaFactor": lambda parameters: pytorch_optimizer.AdaFactor(parameters, lr=1e-3),
    "schedule-free": lambda parameters: AdamWScheduleFree(parameters, lr=1e-2),
}


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("name", RESUMED)
def test_save_load_and_go_on(name: str, level: str, tmp_path: Path) -> None:
    step, other = (step_of(RESUMED[name], O2.replace(level=level)) for _ in range(2))
    for each in (step, other):
        if hasattr(each.optimizer, "train"):
            each.optimizer.train()
    for _ in range(3):
        step(TOKENS)
    step.save(tmp_path / "run")
    other.load(tmp_path / "run")
    for _ in range(3):
        assert step(TOKENS).loss == other(TOKENS).loss


REFUSED: dict[str, Callable[..., optim.Optimizer]] = {
    "SOAP": lambda parameters: pytorch_optimizer.SOAP(parameters, 1e-3),
    "Ranger21": lambda parameters: pytorch_optimizer.Ranger21(parameters, 10, 1e-3),
}


@pytest.mark.parametrize("name", REFUSED)
def test_states_that_are_no_tensors_by_parameter_are_refused_with_a_hint(
    name: str, tmp_path: Path
) -> None:
    step = step_of(REFUSED[name])
    step(TOKENS)
    with pytest.raises(amp.UnsupportedError, match=r"(?s)Hint: .*save optimizer\.state_dict\(\)"):
        step.save(tmp_path / "run")


@pytest.mark.parametrize("wrapper", ["Accelerate", "Lookahead"])
def test_wrapped_optimizers_are_decorated_first(wrapper: str) -> None:
    model = llama()
    inner = optim.AdamW(model.parameters(), 1e-3)
    if wrapper == "Accelerate":
        _, optimizer = Accelerator(cpu=True).prepare(model, inner)
    else:
        optimizer = pytorch_optimizer.Lookahead(inner)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    step = amp.train_step(loss_fn, model, optimizer, policy=O2)
    with pytest.raises(amp.UnsupportedError, match=r"Hint: policy='O1'; or.* before it is wrapped"):
        step(TOKENS)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    amp.decorate(model, inner, O2)
    assert {p.dtype for p in model.parameters()} == {torch.float32, LOW}
    assert np.isfinite(loss_fn(model, TOKENS).item())


# -- from 6 bytes a weight to 2, and back


def held_by(step: amp.TrainStep) -> int:
    """The bytes of the model's low parameters, and of what its optimizer saves of them, but for counters."""
    state = step.optimizer.state_dict()["state"].values()
    kept = [x for slots in state for x in slots.values() if x.ndim == 2]
    low = [p for p in step.model.parameters() if p.ndim == 2]
    return sum(x.nbytes for x in (*low, *kept))


def test_a_model_goes_from_6_bytes_a_weight_to_2_is_resumed_and_goes_back(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """One warning comes, where what was trained in float32 is rounded."""
    two_bytes = O2.replace(masters="stochastic")
    step = step_of(optim.AdamW)
    weights = sum(p.numel() for p in step.model.parameters() if p.ndim == 2)
    for _ in range(3):
        step(TOKENS)
    assert held_by(step) == (6 + 8) * weights
    assert not recwarn.list

    amp.undecorate(step.model, step.optimizer)
    words = r"trained in float32\. masters='stochastic' rounds them to bfloat16.* is lost"
    step = amp.train_step(loss_fn, step.model, step.optimizer, policy=two_bytes)
    with pytest.warns(amp.AmpBridgeWarning, match=words):
        step(TOKENS)
    assert held_by(step) == (2 + 8) * weights
    step.save(tmp_path)

    resumed = step_of(optim.AdamW, two_bytes)
    resumed.load(tmp_path)
    losses = [(step(TOKENS).loss, resumed(TOKENS).loss) for _ in range(3)]
    assert all(one == other for one, other in losses)
    assert len({one for one, _ in losses}) == 3

    before = masters(resumed.model)
    amp.undecorate(resumed.model, resumed.optimizer)
    amp.decorate(resumed.model, resumed.optimizer, O2)
    back = amp.train_step(loss_fn, resumed.model, resumed.optimizer, policy=O2)
    assert all(torch.equal(value, before[name]) for name, value in masters(back.model).items())
    assert back(TOKENS).applied
    assert held_by(back) == (6 + 8) * weights
    assert not recwarn.list
