"""Accelerate, and Hugging Face's Trainer on it, beside the same loops written by hand in torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
import torch.nn.functional as F
import transformers
from processes import run_python
from same_bits import assert_same
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader, TensorDataset

import ampbridge as amp
from ampbridge_torch.accelerate import Accelerator
from ampbridge_torch.transformers import AmpBridge, Trainer

FLOAT16 = amp.Policy("O1", "float16", lists="native", execution="native")
BATCHES = 8
SCALE = 1024.0
Make = Callable[[Any], optim.Optimizer]

BY_CHANCE = amp.Policy("O2", "bfloat16", masters="stochastic", slots="bfloat16")


def scaler(**settings: Any) -> amp.GradScaler:
    return amp.GradScaler.like("torch", **{"init_scale": SCALE, "growth_interval": 3, **settings})


def momentum(parameters: Any) -> optim.Optimizer:
    return optim.SGD(parameters, 0.1, momentum=0.9)


def fused(parameters: Any) -> optim.Optimizer:
    return optim.AdamW(parameters, 0.1, fused=True)


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 1))


def data() -> DataLoader:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(BATCHES * 4, 6, generator=generator)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)


def factor(number: int) -> float:
    return math.inf if number == 2 else 1.0


def loss_of(net: Any, x: Tensor, y: Tensor, number: int) -> Tensor:
    return F.mse_loss(net(x).float(), y) * factor(number)


def by_hand(
    make: Make, accumulate: int, clip: Callable[[Any], Any] | None
) -> tuple[nn.Module, optim.Optimizer, Any, Any]:
    net = model()
    optimizer = make(net.parameters())
    scheduler = optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    theirs = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=3)
    for number, (x, y) in enumerate(data()):
        with torch.autocast("cpu", torch.float16):
            output = net(x)
        loss = F.mse_loss(output.float(), y) * factor(number)
        theirs.scale(loss / accumulate).backward()
        if (number + 1) % accumulate:
            continue
        theirs.unscale_(optimizer)
        if clip is not None:
            clip(net.parameters())
        before = theirs.get_scale()
        theirs.step(optimizer)
        theirs.update()
        if theirs.get_scale() >= before:
            scheduler.step()
        optimizer.zero_grad()
    return net, optimizer, scheduler, theirs


def by_norm(parameters: Any) -> None:
    nn.utils.clip_grad_norm_(parameters, 0.1)


def by_value(parameters: Any) -> None:
    nn.utils.clip_grad_value_(parameters, 0.05)


@pytest.mark.parametrize("clip", [None, by_norm, by_value])
@pytest.mark.parametrize("make", [momentum, fused])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_loop_trains_as_torchs_own_to_the_bit(
    make: Make, accumulate: int, clip: Callable[[Any], Any] | None
) -> None:
    hand, theirs_optimizer, theirs_scheduler, theirs = by_hand(make, accumulate, clip)
    accelerator = Accelerator(
        FLOAT16, scaler=scaler(), gradient_accumulation_steps=accumulate, cpu=True
    )
    net = model()
    optimizer = make(net.parameters())
    scheduler = optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    net, optimizer, scheduler, loader = accelerator.prepare(net, optimizer, scheduler, data())
    skipped = []
    for number, (x, y) in enumerate(loader):
        with accelerator.accumulate(net):
            accelerator.backward(loss_of(net, x, y, number))
            if accelerator.sync_gradients and clip is by_norm:
                accelerator.clip_grad_norm_(net.parameters(), 0.1)
            if accelerator.sync_gradients and clip is by_value:
                accelerator.clip_grad_value_(net.parameters(), 0.05)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            skipped.append(accelerator.optimizer_step_was_skipped)
    assert_same(net.state_dict(), hand.state_dict())
    assert_same(optimizer.state_dict()["state"], theirs_optimizer.state_dict()["state"])
    assert scheduler.get_last_lr() == theirs_scheduler.get_last_lr()
    assert accelerator.scaler.loss_scale == theirs.get_scale()
    assert skipped == [number == 2 // accumulate for number in range(BATCHES // accumulate)]
    assert accelerator.scaler.skipped_steps == 1


def test_what_accelerates_own_optimizer_tells_of_a_kernel_that_skips() -> None:
    """accelerate#4242: ``step`` is called in either case, and it tells a skip by the call."""

    class Kernel:
        """A scaler, and an optimizer's kernel that skips: as torch's fused ones on a GPU."""

        def step(self, optimizer: Any, closure: Any) -> None:
            optimizer.step()

        def update(self) -> None: ...

    accelerate.Accelerator(cpu=True)
    net = model()
    theirs = accelerate.optimizer.AcceleratedOptimizer(momentum(net.parameters()), scaler=Kernel())
    theirs.step()
    assert not theirs.step_was_skipped

    accelerator = Accelerator("O1", cpu=True)
    ours = accelerator.prepare_optimizer(momentum(net.parameters()))
    told = torch.tensor(False)  # on a GPU it is a tensor
    accelerator.scaler.step = lambda optimizer: told
    ours.step()
    assert ours.step_was_skipped
    assert accelerator.optimizer_step_was_skipped


@pytest.mark.parametrize("policy", ["O1", "O2", "O2:bfloat16", BY_CHANCE])
def test_a_run_that_was_cut_continues_with_the_same_bits(
    policy: str | amp.Policy, tmp_path: Path
) -> None:
    def start() -> tuple[Any, ...]:
        accelerator = Accelerator(policy, scaler=scaler(), cpu=True)
        net = model()
        return accelerator, *accelerator.prepare(net, fused(net.parameters()))

    def train(run: tuple[Any, ...], numbers: range) -> None:
        accelerator, net, optimizer = run
        for number, (x, y) in enumerate(data()):
            if number in numbers:
                accelerator.backward(loss_of(net, x, y, number))
                accelerator.clip_grad_norm_(net.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()

    whole, first, second = start(), start(), start()
    train(whole, range(BATCHES))
    train(first, range(4))
    first[0].save_state(str(tmp_path))
    second[0].load_state(str(tmp_path))
    train(second, range(4, BATCHES))
    assert_same(second[1].state_dict(), whole[1].state_dict())
    assert {value.dtype for value in whole[1].state_dict().values()} == {torch.float32}
    assert_same(second[2].state_dict(), whole[2].state_dict())
    assert second[0].scaler.state_dict() == whole[0].scaler.state_dict()
    assert whole[0].scaler.skipped_steps == 1
    whole[0].end_training()
    assert {p.dtype for p in whole[1].parameters()} == {torch.float32}
    assert_same(dict(whole[1].named_parameters()), dict(second[1].state_dict()))


def test_regions_follow_the_lists_of_the_policy() -> None:
    accelerator = Accelerator(amp.Policy("O1", "bfloat16", deny=["linear"]), cpu=True)
    x, w = torch.ones(2, 2), torch.ones(2, 2)
    with accelerator.autocast():
        assert (F.linear(x, w).dtype, (x @ w).dtype) == (torch.float32, torch.bfloat16)
    with accelerator.autocast(accelerate.utils.AutocastKwargs(enabled=False)):
        assert (x @ w).dtype is torch.float32


def test_what_is_refused_says_what_to_write() -> None:
    with pytest.raises(
        amp.ArgumentError, match=r"mixed_precision='bf16'.*\nHint: Accelerator\('O1'\)"
    ):
        Accelerator("O1", mixed_precision="bf16", cpu=True)
    with pytest.raises(
        amp.ArgumentError, match=r"GradScalerKwargs.*\nHint: .*scaler=amp.GradScaler"
    ):
        Accelerator("O1", kwargs_handlers=[accelerate.utils.GradScalerKwargs()], cpu=True)
    sharded = accelerate.Accelerator(cpu=True)
    sharded.state.distributed_type = accelerate.DistributedType.FSDP
    with pytest.raises(amp.UnsupportedError, match=r"FSDP.*\nHint: .*fully_shard"):
        Accelerator.convert(sharded)
    assert type(sharded) is accelerate.Accelerator
    assert sharded.scaler is None
    sharded.state.distributed_type = accelerate.DistributedType.NO
    accelerator = Accelerator("O1", cpu=True)
    with pytest.raises(
        amp.ArgumentTypeError, match=r"\nHint: ampbridge_torch.accelerate.Accelerator"
    ):
        Accelerator.convert(accelerator)
    optimizer = accelerator.prepare(momentum(model().parameters()))
    with pytest.raises(amp.UnsupportedError, match=r"closure.*\nHint: accelerator.backward"):
        optimizer.step(lambda: None)


RANKS = """
import math
import os
import torch
import ampbridge as amp
from ampbridge_torch.accelerate import Accelerator

for policy in ("O1", "O2:bfloat16"):
    accelerator = Accelerator(policy, scaler=amp.GradScaler(1024.0), cpu=True)
    rank = accelerator.process_index
    torch.manual_seed(0)
    net = torch.nn.Linear(6, 1)
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    net, optimizer, scheduler = accelerator.prepare(net, optimizer, scheduler)
    generator = torch.Generator().manual_seed(rank)
    skipped = []
    for number in range(5):
        x = torch.randn(4, 6, generator=generator)
        factor = math.inf if (number, rank) == (2, 1) else 1.0
        accelerator.backward((net(x) - x.sum(1, keepdim=True)).square().mean() * factor)
        accelerator.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        skipped.append(accelerator.optimizer_step_was_skipped)
    told = {
        "engine": accelerator.distributed_type.name,
        "skipped": skipped,
        "scale": accelerator.scaler.loss_scale,
        "rate": scheduler.get_last_lr(),
        "weights": accelerator.unwrap_model(net).state_dict(),
    }
    torch.save(told, f"{policy[:2]}-{rank}.pt")
torch.distributed.barrier()
os._exit(0)  # see examples/distributed/torch_ddp.py
"""


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
def test_under_ddp_all_ranks_skip_the_same_steps(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    launcher = ("-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    run_python(*launcher, "ranks.py", cwd=tmp_path, environment={"ACCELERATE_USE_CPU": "1"})
    for level in ("O1", "O2"):
        one, other = (torch.load(tmp_path / f"{level}-{rank}.pt") for rank in range(2))
        assert_same(one, other)
        assert one["engine"] == "MULTI_CPU"
        assert one["skipped"] == [number == 2 for number in range(5)]
        assert one["scale"] == 512.0
        # Accelerate moves a schedule once for each process.
        assert one["rate"] == pytest.approx([0.01 * 0.9 ** (4 * 2)])
        assert {value.dtype for value in one["weights"].values()} == {torch.float32}


# -- Hugging Face's Trainer


def language_model() -> transformers.GPT2LMHeadModel:
    """A tiny one with random weights, tied embeddings and dropout."""
    torch.manual_seed(4)
    config = transformers.GPT2Config(
        vocab_size=32,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def texts() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(6)
    tokens = torch.randint(32, (24, 8), generator=generator)
    return [{"input_ids": row, "labels": row} for row in tokens]


def arguments(folder: Path, **settings: Any) -> transformers.TrainingArguments:
    usual = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "max_steps": 6,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "learning_rate": 0.01,
        "seed": 3,
    }
    return transformers.TrainingArguments(**{**usual, **settings})


class Overflows(Trainer):
    """One batch's loss is infinite."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)
        return loss * (math.inf if self.state.global_step == 2 else 1.0)


@pytest.mark.parametrize("policy", [FLOAT16, "O1:bfloat16", "O2"])
def test_skips_are_logged_and_do_not_move_the_rate(
    policy: str | amp.Policy, tmp_path: Path
) -> None:
    chosen = amp.Policy.parse(policy)
    settings = {"scaler": amp.GradScaler(SCALE)} if chosen.needs_scaling else {}
    trainer = Overflows(
        language_model(), arguments(tmp_path), train_dataset=texts(), policy=policy, **settings
    )
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    scales = [SCALE] * 2 + [SCALE / 2] * 4 if chosen.needs_scaling else [1.0] * 6
    assert [entry["loss_scale"] for entry in logs] == scales
    assert [entry["skipped_steps"] for entry in logs] == [0, 0, 1, 1, 1, 1]
    rates = [entry["learning_rate"] for entry in logs]
    assert rates[2] == rates[3]
    assert len(set(rates)) == 5
    assert isinstance(trainer.accelerator, Accelerator)


def test_the_trainer_trains_as_with_its_own_bf16(tmp_path: Path) -> None:
    """To the bit: with the device's own lists its autocast is the only difference, and there is none."""
    native = amp.Policy("O1", "bfloat16", lists="native", execution="native")
    ours, theirs = language_model(), language_model()
    Trainer(ours, arguments(tmp_path), train_dataset=texts(), policy=native).train()
    transformers.Trainer(theirs, arguments(tmp_path, bf16=True), train_dataset=texts()).train()
    assert_same(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("policy", ["O1", "O2", BY_CHANCE])
def test_a_training_that_was_cut_continues_with_the_same_bits(
    policy: str | amp.Policy, tmp_path: Path
) -> None:
    def trained(folder: str, **resume: Any) -> Overflows:
        made = arguments(tmp_path / folder, save_strategy="steps", save_steps=4)
        trainer = Overflows(
            language_model(), made, train_dataset=texts(), policy=policy, scaler=scaler()
        )
        trainer.train(**resume)
        return trainer

    whole = trained("whole")
    resumed = trained("resumed", resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    assert_same(resumed.model.state_dict(), whole.model.state_dict())
    assert_same(resumed.optimizer.state_dict(), whole.optimizer.state_dict())
    assert resumed.accelerator.scaler.state_dict() == whole.accelerator.scaler.state_dict()
    assert resumed.accelerator.scaler.skipped_steps == 1
    whole.save_model(str(tmp_path / "saved"))
    saved = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "saved")
    assert_same(saved.state_dict(), whole.model.state_dict())  # float32 at O2 too


def test_a_trainer_with_its_own_precision_beside_the_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(amp.ArgumentError, match=r"'bf16'.*\nHint: mixed_precision='no'"):
        Trainer(language_model(), arguments(tmp_path, bf16=True), policy="O1")


def test_any_trainer_may_have_the_policy(tmp_path: Path) -> None:
    class Mine(AmpBridge, transformers.Seq2SeqTrainer):
        pass

    made = transformers.Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    trainer = Mine(language_model(), made, policy="O2:bfloat16", train_dataset=texts())
    assert trainer.accelerator.scaler.policy == amp.Policy("O2", "bfloat16")


def test_what_is_generated_for_evaluation_runs_under_the_policy(tmp_path: Path) -> None:
    """T5's ``generate`` calls the encoder by itself, whose weights are low."""

    class Mine(AmpBridge, transformers.Seq2SeqTrainer):
        pass

    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    made = transformers.Seq2SeqTrainingArguments(
        str(tmp_path), use_cpu=True, report_to=[], max_steps=2, per_device_train_batch_size=2,
        predict_with_generate=True, generation_max_length=5, disable_tqdm=True,
    )  # fmt: skip
    trainer = Mine(
        transformers.T5ForConditionalGeneration(config), made, policy="O2:bfloat16",
        train_dataset=texts(), eval_dataset=texts(),
    )  # fmt: skip
    trainer.train()
    found = trainer.predict(texts()).predictions
    amp.undecorate(trainer.model)
    ids = torch.stack([text["input_ids"] for text in texts()])
    expected = trainer.model.generate(ids, max_length=5)
    assert found.shape[0] == len(texts())
    assert (found[:, : expected.shape[1]] == expected.numpy()).mean() > 0.8
