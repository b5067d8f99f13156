"""Lightning's Trainer and Fabric with the plugin, beside the same loops written by hand in torch.

The loops by hand take ``torch.autocast`` and ``torch.amp.GradScaler``; a policy of native lists and
kernels makes the plugin comparable to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from lightning.pytorch.plugins import MixedPrecision
from processes import run_python
from same_bits import assert_same
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader

import ampbridge as amp
from ampbridge_torch.lightning import AmpBridge, ScaleLogs

FLOAT16 = amp.Policy("O1", "float16", lists="native", execution="native")
BATCHES = 8
SCALE = 1024.0

BY_CHANCE = amp.Policy("O2", "bfloat16", masters="stochastic", slots="bfloat16")


def scaler(**settings: Any) -> amp.GradScaler:
    return amp.GradScaler.like("torch", **{"init_scale": SCALE, "growth_interval": 3, **settings})


def torchs_scaler() -> Any:
    return torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=3)


def data() -> DataLoader:
    torch.manual_seed(5)
    return DataLoader(RandomDataset(32, BATCHES))


Make = Callable[[Any], optim.Optimizer]


def momentum(parameters: Any) -> optim.Optimizer:
    return optim.SGD(parameters, 0.1, momentum=0.9)


def fused(parameters: Any) -> optim.Optimizer:
    return optim.AdamW(parameters, 0.1, fused=True)


class Boring(BoringModel):
    """Lightning's own, which overflows in the batches that a test chooses."""

    def __init__(self, make: Make = momentum, overflow: tuple[int, ...] = (2,)) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(32, 2)
        self.make, self.overflow = make, overflow

    def factor(self, batch_idx: int) -> float:
        return math.inf if batch_idx in self.overflow else 1.0

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        return self.step(batch) * self.factor(batch_idx)

    def configure_optimizers(self) -> Any:
        optimizer = self.make(self.parameters())
        scheduler = optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def train_dataloader(self) -> DataLoader:
        return data()


def trainer(*plugins: Any, **settings: Any) -> L.Trainer:
    quiet = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "limit_val_batches": 0,
        "max_epochs": 1,
    }
    return L.Trainer(plugins=list(plugins), **{**quiet, **settings})


def by_hand(
    model: Boring, accumulate: int = 1, clip: Callable[[Any], Any] | None = None
) -> tuple[optim.Optimizer, Any, Any]:
    """What the Trainer does with ``model``, in torch; steps that are skipped do not move the rate."""
    configured = model.configure_optimizers()
    optimizer, scheduler = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
    theirs = torchs_scaler()
    for number, batch in enumerate(data()):
        with torch.autocast("cpu", torch.float16):
            loss = F.mse_loss(model.layer(batch).float(), torch.ones(1, 2))
            loss = loss * model.factor(number)
        theirs.scale(loss / accumulate).backward()
        if (number + 1) % accumulate:
            continue
        theirs.unscale_(optimizer)
        if clip is not None:
            clip(model.parameters())
        before = theirs.get_scale()
        theirs.step(optimizer)
        theirs.update()
        optimizer.zero_grad()
        if theirs.get_scale() >= before:
            scheduler.step()
    return optimizer, scheduler, theirs


def by_norm(parameters: Any) -> None:
    nn.utils.clip_grad_norm_(parameters, 0.1)


def by_value(parameters: Any) -> None:
    nn.utils.clip_grad_value_(parameters, 0.05)


CLIPPINGS: dict[str, tuple[dict[str, Any], Callable[[Any], Any] | None]] = {
    "none": ({}, None),
    "norm": ({"gradient_clip_val": 0.1}, by_norm),
    "value": ({"gradient_clip_val": 0.05, "gradient_clip_algorithm": "value"}, by_value),
}


# -- automatic optimization


@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("make", [momentum, fused])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_trainer_trains_as_torchs_own_loop_to_the_bit(
    make: Make, clipping: str, accumulate: int
) -> None:
    """Among them fused optimizers with clipping (Lightning#21435), and a rate that waits (#21339)."""
    settings, clip = CLIPPINGS[clipping]
    hand, model = Boring(make), Boring(make)
    optimizer, scheduler, theirs = by_hand(hand, accumulate, clip)
    plugin = AmpBridge(FLOAT16, scaler=scaler())
    trains = trainer(plugin, accumulate_grad_batches=accumulate, **settings)
    trains.fit(model)
    assert_same(dict(model.named_parameters()), dict(hand.named_parameters()))
    assert_same(trains.optimizers[0].state_dict(), optimizer.state_dict())
    assert plugin.scaler.get_scale() == theirs.get_scale()
    (config,) = trains.lr_scheduler_configs
    assert_same(config.scheduler.state_dict(), scheduler.state_dict())
    assert (plugin.steps, plugin.skipped_steps) == (BATCHES // accumulate, 1)


def test_what_lightnings_own_plugin_does_here() -> None:
    """The issues: they are open with the version that is pinned."""
    own = MixedPrecision("16-mixed", "cpu", torchs_scaler())
    with pytest.raises(RuntimeError, match="does not allow for gradient clipping"):
        trainer(own, gradient_clip_val=0.1).fit(Boring(fused))  # Lightning#21435
    own, model = MixedPrecision("16-mixed", "cpu", torchs_scaler()), Boring()
    trains = trainer(own)
    trains.fit(model)
    moved = trains.lr_scheduler_configs[0].scheduler.last_epoch
    assert moved == BATCHES  # Lightning#21339: with the skipped step


def test_a_first_step_that_is_skipped_gives_no_warning_of_torch() -> None:
    """pytorch#67590: "lr_scheduler.step() before optimizer.step()"; warnings are errors here."""
    plugin = AmpBridge(FLOAT16, scaler=scaler())
    model = Boring(overflow=(0, 1))
    trainer(plugin).fit(model)
    assert model.lr_schedulers().last_epoch == BATCHES - 2
    assert isinstance(model.lr_schedulers(), optim.lr_scheduler.StepLR)


def test_a_scheduler_of_epochs_moves_once_an_epoch() -> None:
    """Unless all of its steps were skipped."""

    class ByEpoch(Boring):
        def configure_optimizers(self) -> Any:
            configured = super().configure_optimizers()
            configured["lr_scheduler"]["interval"] = "epoch"
            return configured

    for overflow, moves in (((BATCHES - 1,), 2), (range(BATCHES), 0)):
        model = ByEpoch(overflow=tuple(overflow))
        trainer(AmpBridge(FLOAT16, scaler=scaler()), max_epochs=2).fit(model)
        assert model.lr_schedulers().last_epoch == moves


def test_hooks_ahead_of_the_step_see_unscaled_gradients() -> None:
    class Looks(Boring):
        def on_before_optimizer_step(self, optimizer: optim.Optimizer) -> None:
            seen.append(max(float(p.grad.abs().max()) for p in self.parameters()))

    seen: list[float] = []
    trainer(AmpBridge(FLOAT16, scaler=scaler())).fit(Looks(overflow=()))
    assert 0 < max(seen) < 100


def test_a_step_without_a_loss_is_none() -> None:
    class Leaves(Boring):
        def training_step(self, batch: Tensor, batch_idx: int) -> Any:
            return None if batch_idx == 1 else super().training_step(batch, batch_idx)

    plugin = AmpBridge(FLOAT16, scaler=scaler())
    with pytest.warns(UserWarning, match="`training_step` returned `None`"):
        trainer(plugin).fit(Leaves())
    assert (plugin.steps, plugin.skipped_steps) == (BATCHES - 1, 1)


@pytest.mark.parametrize("factor,reason", [(math.inf, "inf"), (math.nan, "nan")])
@pytest.mark.parametrize("policy", ["O0", "O1", "O1:bfloat16", "O2", "O2:bfloat16"])
def test_skips_are_reported_at_every_level(policy: str, factor: float, reason: str) -> None:
    class Fails(Boring):
        def factor(self, batch_idx: int) -> float:
            return factor if batch_idx == 2 else 1.0

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            told.append((plugin.last_step_skipped, plugin.reason))
            metrics.append(dict(self.trainer.callback_metrics))

    told: list[Any] = []
    metrics: list[Any] = []
    plugin = AmpBridge(policy)
    scaled = plugin.policy.needs_scaling
    if scaled:
        plugin = AmpBridge(policy, scaler=amp.GradScaler(256.0))
    trains = trainer(plugin, callbacks=[ScaleLogs()])
    trains.fit(Fails())
    assert told == [(n == 2, reason if n == 2 else None) for n in range(BATCHES)]
    assert plugin.skipped_steps == 1
    scales = [256.0 if n < 2 else 128.0 for n in range(BATCHES)] if scaled else [1.0] * BATCHES
    assert [float(m["loss_scale"]) for m in metrics] == scales
    assert [float(m["skipped_steps"]) for m in metrics] == [float(n >= 2) for n in range(BATCHES)]


def test_repeated_skips_warn_and_stop_the_run() -> None:
    class AlwaysFails(Boring):
        def factor(self, batch_idx: int) -> float:
            return math.inf

    settings = {"warn_after_skips": None, "max_consecutive_skips": 3}
    model = AlwaysFails()
    with pytest.raises(amp.OverflowStuckError):
        trainer(AmpBridge("O2", scaler=amp.GradScaler(**settings))).fit(model)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert "forward" not in vars(model)


# -- O2


def as_train_step(policy: str) -> Boring:
    """Boring with ampbridge's own step."""
    model = Boring()
    configured = model.configure_optimizers()

    def loss_fn(model: Boring, batch: Tensor, number: int) -> Tensor:
        return model.training_step(batch, number)

    scheduler = configured["lr_scheduler"]["scheduler"]
    step = amp.train_step(
        loss_fn, model, configured["optimizer"], policy=policy, scaler=scaler(), scheduler=scheduler
    )
    for number, batch in enumerate(data()):
        step(batch, number)
    return amp.undecorate(model, configured["optimizer"])[0]


@pytest.mark.parametrize("policy", ["O1", "O2", "O2:bfloat16"])
def test_the_trainer_trains_as_train_step_to_the_bit(policy: str) -> None:
    model = Boring()
    trainer(AmpBridge(policy, scaler=scaler())).fit(model)
    assert_same(dict(model.named_parameters()), dict(as_train_step(policy).named_parameters()))


def test_at_o2_parameters_are_low_within_fit_and_float32_outside(tmp_path: Path) -> None:
    class Looks(Boring):
        def on_train_batch_end(self, *_: Any) -> None:
            within.update(parameter.dtype for parameter in self.parameters())

    within: set[torch.dtype] = set()
    model = Looks()
    trains = trainer(AmpBridge("O2:bfloat16"))
    trains.fit(model)
    assert within == {torch.bfloat16}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {p.dtype for p in trains.optimizers[0].param_groups[0]["params"]} == {torch.float32}
    assert "forward" not in vars(model)
    trains.validate(model, verbose=False)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("policy", ["O1", "O2", BY_CHANCE])
def test_a_run_that_was_cut_continues_with_the_same_bits(
    policy: str | amp.Policy, tmp_path: Path
) -> None:
    def run(epochs: int, checkpoint: Path | None = None) -> tuple[Boring, L.Trainer, AmpBridge]:
        model, plugin = Boring(overflow=(2, 5)), AmpBridge(policy, scaler=scaler())
        trains = trainer(plugin, max_epochs=epochs)
        trains.fit(model, ckpt_path=checkpoint)
        return model, trains, plugin

    class Keeps(L.Callback):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
            trainer.save_checkpoint(tmp_path / "within.ckpt")

    first, plugin = Boring(overflow=(2, 5)), AmpBridge(policy, scaler=scaler())
    cut = trainer(plugin, max_epochs=1, callbacks=[Keeps()])
    cut.fit(first)
    saved = torch.load(tmp_path / "within.ckpt", weights_only=True)
    assert_same(saved["state_dict"], first.state_dict())  # float32, those of after the fit
    whole, whole_trainer, whole_plugin = run(2)
    resumed, resumed_trainer, resumed_plugin = run(2, tmp_path / "within.ckpt")
    assert_same(dict(resumed.named_parameters()), dict(whole.named_parameters()))
    states = [t.optimizers[0].state_dict() for t in (resumed_trainer, whole_trainer)]
    assert_same(*states)
    assert resumed_plugin.state_dict() == whole_plugin.state_dict()
    assert resumed_plugin.skipped_steps == 4


def test_a_run_of_lightnings_own_plugin_is_continued_with_its_scale(tmp_path: Path) -> None:
    own = MixedPrecision("16-mixed", "cpu", torchs_scaler())
    trains = trainer(own)
    trains.fit(Boring(overflow=(2, 3)))
    trains.save_checkpoint(tmp_path / "own.ckpt")
    plugin = AmpBridge(FLOAT16, scaler=scaler())
    trainer(plugin, max_epochs=1).fit(Boring(), ckpt_path=tmp_path / "own.ckpt")
    assert plugin.scaler.get_scale() == own.scaler.get_scale() != SCALE


# -- lists and layers


def test_ops_follow_the_lists_of_the_policy() -> None:
    """pytorch#117832: which ops run low is the user's choice; with no op left it is float32."""
    denied = Boring(overflow=())
    trainer(AmpBridge(amp.Policy("O1", "bfloat16", deny=["linear"]))).fit(denied)
    full, low = Boring(overflow=()), Boring(overflow=())
    trainer().fit(full)
    trainer(AmpBridge("O1:bfloat16")).fit(low)
    assert_same(dict(denied.named_parameters()), dict(full.named_parameters()))
    assert not torch.equal(low.layer.weight, full.layer.weight)


def test_kept_layers_run_in_float32() -> None:
    kept, full = Boring(overflow=()), Boring(overflow=())
    trainer(AmpBridge(amp.Policy("O1", "bfloat16", keep=["layer"]))).fit(kept)
    trainer().fit(full)
    assert_same(dict(kept.named_parameters()), dict(full.named_parameters()))


def test_a_compiled_model_trains_as_the_model() -> None:
    plain, compiled = Boring(), Boring()
    trainer(AmpBridge(FLOAT16, scaler=scaler())).fit(plain)
    trainer(AmpBridge(FLOAT16, scaler=scaler())).fit(torch.compile(compiled, backend="aot_eager"))
    assert_same(dict(compiled.named_parameters()), dict(plain.named_parameters()))


# -- manual optimization


class TwoOptimizers(L.LightningModule):
    """Two losses are differentiated ahead of two steps; the first overflows in one batch."""

    def __init__(self, clips: str) -> None:
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(1)
        self.one, self.two = nn.Linear(32, 2), nn.Linear(32, 2)
        self.clips = clips

    def losses(self, batch: Tensor, batch_idx: int) -> tuple[Tensor, Tensor]:
        one, two = (F.mse_loss(m(batch).float(), torch.ones(1, 2)) for m in (self.one, self.two))
        return one * (math.inf if batch_idx == 2 else 1.0), two

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        one, two = self.optimizers()
        scheduler = self.lr_schedulers()
        losses = self.losses(batch, batch_idx)
        one.zero_grad()
        two.zero_grad()
        self.manual_backward(losses[0])
        if self.clips == "one":  # ahead of the other loss
            self.clip_gradients(one, gradient_clip_val=0.1, gradient_clip_algorithm="norm")
        self.manual_backward(losses[1])
        if self.clips == "two":
            self.clip_gradients(two, gradient_clip_val=0.1, gradient_clip_algorithm="norm")
        if one.step():
            scheduler.step()
        assert two.step()

    def configure_optimizers(self) -> Any:
        optimizers = [momentum(self.one.parameters()), fused(self.two.parameters())]
        return optimizers, [optim.lr_scheduler.StepLR(optimizers[0], 1, 0.5)]


@pytest.mark.parametrize("clips", ["", "one", "two"])
def test_several_optimizers_step_as_in_torchs_own_loop(clips: str) -> None:
    """The second one's gradients were computed at the scale that the first one's overflow lowers."""
    hand = TwoOptimizers(clips)
    optimizers, (scheduler,) = hand.configure_optimizers()
    theirs = torchs_scaler()
    for number, batch in enumerate(data()):
        with torch.autocast("cpu", torch.float16):
            losses = hand.losses(batch, number)
        for loss in losses:
            theirs.scale(loss).backward()
        for optimizer in optimizers:
            theirs.unscale_(optimizer)
        if clips:
            by_norm(getattr(hand, clips).parameters())
        for optimizer in optimizers:
            theirs.step(optimizer)
        theirs.update()
        for optimizer in optimizers:
            optimizer.zero_grad()
        if number != 2:
            scheduler.step()
    model, plugin = TwoOptimizers(clips), AmpBridge(FLOAT16, scaler=scaler())
    trainer(plugin).fit(model, data())
    assert_same(dict(model.named_parameters()), dict(hand.named_parameters()))
    assert plugin.scaler.get_scale() == theirs.get_scale()
    assert model.lr_schedulers().last_epoch == BATCHES - 1
    assert (plugin.steps, plugin.skipped_steps) == (2 * BATCHES, 1)


def test_a_scheduler_that_the_user_steps_moves_whenever_it_is_stepped() -> None:
    class Steps(TwoOptimizers):
        def training_step(self, batch: Tensor, batch_idx: int) -> None:
            if batch_idx == 0:
                super().training_step(batch, batch_idx)
            else:
                self.lr_schedulers().step()

    model = Steps("")
    trainer(AmpBridge(FLOAT16, scaler=scaler())).fit(model, data())
    assert model.lr_schedulers().last_epoch == BATCHES


def test_gradients_that_were_unscaled_and_added_to_are_refused() -> None:
    class Accumulates(TwoOptimizers):
        def training_step(self, batch: Tensor, batch_idx: int) -> None:
            one, _ = self.optimizers()
            self.manual_backward(self.losses(batch, 0)[0])
            self.clip_gradients(one, gradient_clip_val=0.1, gradient_clip_algorithm="norm")

    with pytest.raises(
        amp.CallOrderError, match=r"unscale\(\) of this optimizer after unscale\(\)"
    ):
        trainer(AmpBridge(FLOAT16, scaler=scaler())).fit(Accumulates(""), data())


def test_at_o2_several_optimizers_update_the_masters_of_their_part() -> None:
    model = TwoOptimizers("two")
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trains = trainer(AmpBridge("O2", scaler=scaler()))
    trains.fit(model, data())
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not any(torch.equal(before[name], p) for name, p in model.named_parameters())
    rounded = [p.half().float() for p in model.parameters()]
    assert not any(map(torch.equal, rounded, model.parameters()))  # the masters' own values


# -- Fabric


def batches_of(fabric: L.Fabric) -> Iterator[tuple[int, Tensor]]:
    yield from enumerate(fabric.setup_dataloaders(data()))


@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("make", [momentum, fused])
def test_fabric_trains_as_torchs_own_loop_to_the_bit(make: Make, clipping: str) -> None:
    hand, module = Boring(make), Boring(make)
    theirs_optimizer, theirs_scheduler, theirs = by_hand(hand, 1, CLIPPINGS[clipping][1])
    plugin = AmpBridge(FLOAT16, scaler=scaler())
    fabric = L.Fabric(accelerator="cpu", devices=1, plugins=[plugin])
    configured = module.configure_optimizers()
    scheduler = configured["lr_scheduler"]["scheduler"]
    model, optimizer = fabric.setup(module.layer, configured["optimizer"])
    for number, batch in batches_of(fabric):
        loss = F.mse_loss(model(batch), torch.ones(1, 2)) * module.factor(number)
        fabric.backward(loss)
        if clipping == "norm":
            fabric.clip_gradients(model, optimizer, max_norm=0.1, error_if_nonfinite=False)
        elif clipping == "value":
            fabric.clip_gradients(model, optimizer, clip_val=0.05)
        if optimizer.step():
            scheduler.step()
        optimizer.zero_grad()
    assert_same(dict(module.named_parameters()), dict(hand.named_parameters()))
    assert_same(optimizer.state_dict(), theirs_optimizer.state_dict())
    assert plugin.loss_scale == theirs.get_scale()
    assert scheduler.last_epoch == theirs_scheduler.last_epoch
    assert (plugin.steps, plugin.skipped_steps) == (BATCHES, 1)


@pytest.mark.parametrize("policy", ["O1", "O2", BY_CHANCE])
def test_a_fabric_run_that_was_cut_continues_with_the_same_bits(
    policy: str | amp.Policy, tmp_path: Path
) -> None:
    def start() -> tuple[Any, ...]:
        module, plugin = Boring(fused), AmpBridge(policy, scaler=scaler())
        fabric = L.Fabric(accelerator="cpu", devices=1, plugins=[plugin])
        model, optimizer = fabric.setup(module.layer, fused(module.layer.parameters()))
        plugin.adopt(optimizer)
        return fabric, model, optimizer, plugin, module

    def train(run: tuple[Any, ...], numbers: range) -> None:
        fabric, model, optimizer, _, module = run
        for number, batch in batches_of(fabric):
            if number in numbers:
                with fabric.autocast():
                    loss = F.mse_loss(model(batch), torch.ones(1, 2)) * module.factor(number)
                fabric.backward(loss)
                optimizer.step()
                optimizer.zero_grad()

    def state_of(run: tuple[Any, ...]) -> dict[str, Any]:
        _, model, optimizer, plugin, _ = run
        return {"model": model, "optimizer": optimizer, "amp": plugin.state_dict()}

    whole, first, second = start(), start(), start()
    train(whole, range(BATCHES))
    train(first, range(4))
    first[0].save(tmp_path / "run.ckpt", state_of(first))
    state = state_of(second)
    second[0].load(tmp_path / "run.ckpt", state)
    second[3].load_state_dict(state["amp"])
    train(second, range(4, BATCHES))
    assert_same(second[1].state_dict(), whole[1].state_dict())
    assert {value.dtype for value in second[1].state_dict().values()} == {torch.float32}
    assert_same(second[2].state_dict(), whole[2].state_dict())
    assert second[3].state_dict() == whole[3].state_dict()


def test_a_state_that_was_loaded_ahead_of_the_masters_is_refused() -> None:
    plugin, layer = AmpBridge("O2"), nn.Linear(32, 2)
    optimizer = fused(layer.parameters())
    layer(torch.ones(1, 32)).sum().backward()
    optimizer.step()
    fabric = L.Fabric(accelerator="cpu", devices=1, plugins=[plugin])
    model, wrapped = fabric.setup(layer, fused(layer.parameters()))
    wrapped.load_state_dict(optimizer.state_dict())
    fabric.backward(model(torch.ones(1, 32)).sum())
    with pytest.raises(amp.CallOrderError, match=r"16 bits.*\nHint: .*adopt\(optimizer\)"):
        wrapped.step()


# -- what is refused


def test_what_is_refused_says_what_to_write() -> None:
    with pytest.raises(amp.AmpBridgeError, match=r"\nHint: .*load_state_dict"):
        AmpBridge("O1", scaler=torchs_scaler())
    with pytest.raises(amp.AmpBridgeError, match=r"\nHint: "):
        AmpBridge(amp.Schedule([(0, "O0"), (5, "O1")]))  # type: ignore[arg-type]
    with pytest.raises(amp.AmpBridgeError, match=r"LBFGS.*\nHint: optim.AdamW"):
        trainer(AmpBridge("O1")).fit(Boring(optim.LBFGS))
    with pytest.raises(amp.AmpBridgeError, match=r"ScaleLogs.*\nHint: Trainer\(plugins="):
        trainer(callbacks=[ScaleLogs()]).fit(Boring())
    with pytest.raises(amp.StateError, match=r"steps=-1.*\nHint: "):
        AmpBridge("O1").load_state_dict({"scaler": scaler().state_dict(), "steps": -1})
    fabric = L.Fabric(accelerator="cpu", devices=1, plugins=[AmpBridge("O1")])
    model, optimizer = fabric.setup(nn.Linear(2, 2), None or momentum(nn.Linear(2, 2).parameters()))
    fabric.backward(model(torch.ones(2, 2)).sum())
    with pytest.raises(amp.CallOrderError, match="not one gradient"):
        optimizer.step()


# -- several processes, and the other package

RANKS = """
import sys
sys.path.insert(0, {tests!r})
import torchvision_ops
declared = torchvision_ops.declare()
import math
import pytorch_lightning as pl
import torch
from pytorch_lightning.demos.boring_classes import BoringModel, RandomDataset
import ampbridge as amp
from ampbridge_torch.lightning import AmpBridge

class Differs(BoringModel):  # an overflow on one rank alone
    def training_step(self, batch, batch_idx):
        return self.step(batch) * (math.inf if (batch_idx, self.global_rank) == (1, 1) else 1.0)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        return [optimizer], [{{"scheduler": scheduler, "interval": "step"}}]

    def on_fit_end(self):  # in each process
        told = {{"state": plugin.state_dict(), "weights": self.state_dict(),
                "moved": self.lr_schedulers().last_epoch}}
        torch.save(told, f"{{policy[:2]}}-{{self.global_rank}}.pt")

for policy in ("O1", "O2:bfloat16"):
    plugin = AmpBridge(policy, scaler=amp.GradScaler(1024.0))
    trainer = pl.Trainer(
        plugins=[plugin], strategy="ddp_fork", devices=2, accelerator="cpu", max_epochs=1,
        limit_val_batches=0, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False)
    trainer.fit(Differs(), torch.utils.data.DataLoader(RandomDataset(32, 8)))
assert "lightning" not in sys.modules
"""


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
def test_under_ddp_all_ranks_skip_the_same_steps(tmp_path: Path) -> None:
    """Also that pytorch_lightning is taken if it is the package in use."""
    script = tmp_path / "ranks.py"
    script.write_text(RANKS.format(tests=str(Path(__file__).parents[1])))
    run_python("-W", "ignore", script, cwd=tmp_path)
    for level in ("O1", "O2"):
        one, other = (torch.load(tmp_path / f"{level}-{rank}.pt") for rank in range(2))
        assert_same(one, other)
        assert one["state"]["steps"] == 4  # each rank has half of the batches
        assert one["state"]["skipped_steps"] == 1
        assert one["state"]["scaler"]["scale"] == 512.0
        assert one["moved"] == 3
        assert {value.dtype for value in one["weights"].values()} == {torch.float32}
