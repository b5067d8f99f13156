"""GradScaler and the real torch.amp.GradScaler: the same histories, states there and back, its bugs.

What torch's scaler does wrong is left out of the histories by name, and has a test that shows it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn, optim

import ampbridge as amp
from ampbridge import GradScaler
from ampbridge.scaling.scale_rule import LARGEST_SCALE, SMALLEST_SCALE

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VALUES = {"finite": 1.0, "inf": math.inf, "nan": math.nan}

# -- histories

# Torch computes with factors in double; ours are float32, as every backend has them.
factors_above_1 = st.sampled_from([1.5, 2.0, 3.0]) | st.floats(
    1.0, 2.0**20, width=32, exclude_min=True
)
factors_below_1 = st.sampled_from([0.25, 0.5, 0.75]) | st.floats(2.0**-20, 1.0, width=32).filter(
    lambda factor: factor < 1.0
)
intervals = st.integers(1, 4)
first_scales = st.sampled_from([1.0, 2.0**16, SMALLEST_SCALE, LARGEST_SCALE]) | st.floats(
    SMALLEST_SCALE, LARGEST_SCALE, width=32
)
arguments = st.fixed_dictionaries(
    {
        "init_scale": first_scales,
        "growth_factor": factors_above_1,
        "backoff_factor": factors_below_1,
        "growth_interval": intervals,
    }
)

kinds = st.sampled_from(["finite", "finite", "finite", "inf", "nan"])
# For each of two optimizers what its micro-batches bring, none for one that has no gradients.
iterations = st.tuples(
    st.just("iterate"),
    st.lists(kinds, max_size=3),
    st.lists(kinds, min_size=1, max_size=3),
    st.booleans(),
)
events = st.one_of(
    iterations,
    iterations,
    iterations,
    st.sampled_from([("to_native",), ("from_native",), ("their state",), ("our state",)]),
    st.tuples(st.just("growth_factor"), factors_above_1 | st.just(1.0)),
    st.tuples(st.just("backoff_factor"), factors_below_1 | st.just(1.0)),
    st.tuples(st.just("growth_interval"), intervals),
)


class Trained:
    """Two parameters and their optimizers, under one scaler in a loop written by hand."""

    def __init__(self, scaler: Any) -> None:
        self.scaler = scaler
        self.weights = [nn.Parameter(torch.ones(2, device=DEVICE)) for _ in range(2)]
        self.optimizers = [optim.SGD([w], 0.25, momentum=0.5) for w in self.weights]

    def iterate(self, first: list[str], second: list[str], early: bool) -> None:
        """Micro-batches, and one step of each optimizer; ``early``: the second is unscaled before."""
        unscale = getattr(self.scaler, "unscale_", None) or self.scaler.unscale
        for weight, optimizer, batches in zip(
            self.weights, self.optimizers, (first, second), strict=True
        ):
            optimizer.zero_grad()
            for kind in batches:
                self.scaler.scale((weight * VALUES[kind]).sum()).backward()
        if early:
            unscale(self.optimizers[1])
        for optimizer, batches in zip(self.optimizers, (first, second), strict=True):
            if batches:
                self.scaler.step(optimizer)
        self.scaler.update()


@pytest.mark.filterwarnings("ignore::ampbridge.errors.AmpBridgeWarning")  # alarms are ours alone
@settings(max_examples=settings.default.max_examples * 5)
@given(arguments=arguments, history=st.lists(events, min_size=1, max_size=20))
def test_any_history_is_that_of_torch(arguments: dict[str, Any], history: list[Any]) -> None:
    ours = Trained(GradScaler.like("torch", **arguments))
    theirs = Trained(torch.amp.GradScaler(DEVICE, **arguments))
    for event, *details in history:
        if event == "iterate":
            ours.iterate(*details)
            theirs.iterate(*details)
        elif event == "to_native":
            theirs.scaler = ours.scaler.to_native("torch", optimizer=theirs.optimizers[0])
        elif event == "from_native":
            ours.scaler = GradScaler.from_native(theirs.scaler)
        elif event == "their state":
            ours.scaler.load_state_dict(theirs.scaler.state_dict())
        elif event == "our state":
            ours.scaler.load_state_dict(ours.scaler.state_dict())
        else:
            if event == "growth_interval":
                tracker = theirs.scaler.state_dict()["_growth_tracker"]
                assume(details[0] > tracker)  # test_an_interval_that_has_passed
            getattr(theirs.scaler, f"set_{event}")(*details)
            ours.scaler.load_state_dict({**ours.scaler.state_dict(), event: details[0]})
        if not SMALLEST_SCALE <= theirs.scaler.get_scale() <= LARGEST_SCALE:
            # test_a_scale_that_collapses, test_a_scale_without_a_reciprocal
            assert SMALLEST_SCALE <= ours.scaler.get_scale() <= LARGEST_SCALE
            return
        assert_same(ours, theirs)


def assert_same(ours: Trained, theirs: Trained) -> None:
    for place in range(2):
        a, b = ours.weights[place], theirs.weights[place]
        assert torch.equal(a, b)
        one = ours.optimizers[place].state[a].get("momentum_buffer")
        other = theirs.optimizers[place].state[b].get("momentum_buffer")
        assert (one is None and other is None) or torch.equal(one, other)
    state, native = ours.scaler.state_dict(), theirs.scaler.state_dict()
    assert state["scale"] == native["scale"]
    assert state["good_steps"] == native["_growth_tracker"]
    for name in ("growth_factor", "backoff_factor", "growth_interval"):
        assert state[name] == native[name]


# -- states


def test_all_of_its_state_arrives() -> None:
    ours = GradScaler.like(
        "torch", init_scale=512.0, growth_factor=3.0, backoff_factor=0.25, growth_interval=7
    )
    ours.load_state_dict({**ours.state_dict(), "good_steps": 5})
    theirs = ours.to_native("torch")
    assert type(theirs) is torch.amp.GradScaler
    assert theirs.state_dict() == {
        "scale": 512.0,
        "growth_factor": 3.0,
        "backoff_factor": 0.25,
        "growth_interval": 7,
        "_growth_tracker": 5,
    }
    assert theirs.scale(torch.tensor(2.0, device=DEVICE)).item() == 1024.0
    assert GradScaler.from_native(theirs).state_dict() == ours.state_dict()


def test_it_is_where_the_optimizer_s_parameters_are() -> None:
    optimizer = optim.SGD([nn.Parameter(torch.ones(1, device=DEVICE))], 0.1)
    theirs = GradScaler.like("torch").to_native("torch", optimizer=optimizer)
    assert theirs.scale(torch.ones(1, device=DEVICE)).device.type == DEVICE
    assert theirs.is_enabled()


def test_one_that_is_off() -> None:
    theirs = GradScaler.like("torch", enabled=False).to_native("torch")
    assert not theirs.is_enabled()
    assert not GradScaler.from_native(theirs).enabled


def test_what_it_cannot_follow_is_listed_and_can_be_dropped() -> None:
    with pytest.raises(amp.UnsupportedError, match="backoff_interval=2, min_scale=") as error:
        GradScaler(8.0, backoff_interval=2).to_native("torch")
    assert "at_max_scale='clamp'" in str(error.value)
    bounds = ["min_scale", "max_scale", "at_max_scale"]
    theirs = GradScaler(8.0).to_native("torch", drop=bounds)
    assert theirs.get_scale() == 8.0


@pytest.mark.parametrize("preset", ["paddle", "keras", "flax", "apex", "deepspeed", "megatron"])
def test_other_presets_arrive_or_are_refused(preset: str) -> None:
    """Paddle's and Keras' rules, with their settings here, are torch's; the rest has bounds or delays."""
    scaler = GradScaler.like(preset)
    if preset in ("paddle", "keras"):
        assert scaler.to_native("torch").get_scale() == scaler.get_scale()
    else:
        with pytest.raises(amp.UnsupportedError, match="cannot follow"):
            scaler.to_native("torch")


class InAccelerate:
    """A loop of Accelerate's; on a CPU it makes no scaler by itself, so it is given torch's."""

    def __init__(self) -> None:
        accelerate = pytest.importorskip("accelerate")
        self.weight = nn.Parameter(torch.ones(2))
        self.accelerator = accelerate.Accelerator(cpu=True)
        self.accelerator.scaler = torch.amp.GradScaler("cpu", 2.0**10, 3.0, 0.25, 4)
        self.optimizer = self.accelerator.prepare(optim.SGD([self.weight], 0.25))

    def iterate(self, kind: str) -> float:
        self.optimizer.zero_grad()
        self.accelerator.backward((self.weight * VALUES[kind]).sum())
        self.optimizer.step()
        return float(self.accelerator.scaler.get_scale())


@pytest.mark.filterwarnings("ignore::DeprecationWarning:accelerate")
def test_what_accelerate_saves_goes_on(tmp_path: Path) -> None:
    """Its ``scaler.pt``, written by ``save_state``; and ours, read by ``load_state``."""
    loop = InAccelerate()
    for kind in ("finite", "finite", "inf", "finite", "finite", "finite"):
        loop.iterate(kind)
    loop.accelerator.save_state(str(tmp_path))
    state = torch.load(tmp_path / "scaler.pt", weights_only=True)
    ours = Trained(GradScaler())
    ours.scaler.load_state_dict(state)
    assert (ours.scaler.get_scale(), ours.scaler.state_dict()["good_steps"]) == (2.0**8, 3)
    history = ["finite", "nan", *["finite"] * 5, "inf", *["finite"] * 4]
    scales = [loop.iterate(kind) for kind in history]
    assert scales == [768.0, *[192.0] * 4, *[576.0] * 2, *[144.0] * 4, 432.0]
    for kind, scale in zip(history, scales, strict=True):
        ours.iterate([kind], [kind], False)
        assert ours.scaler.get_scale() == scale

    dropped = ["min_scale", "max_scale", "at_max_scale"]
    back = ours.scaler.to_native("torch", drop=dropped).state_dict()
    torch.save(back, tmp_path / "scaler.pt")
    other = InAccelerate()
    other.accelerator.load_state(str(tmp_path))
    for kind in history:
        ours.iterate([kind], [kind], False)
        assert other.iterate(kind) == ours.scaler.get_scale()


@pytest.mark.parametrize("other", [nn.Linear(1, 1), torch.ones(1)], ids=["a model", "a tensor"])
def test_what_is_no_scaler(other: Any) -> None:
    with pytest.raises(amp.ArgumentTypeError, match=r"is no torch\.amp\.GradScaler"):
        GradScaler.from_native(other)


def test_factors_are_rounded_to_float32() -> None:
    theirs = torch.amp.GradScaler(DEVICE, backoff_factor=0.3)
    ours = GradScaler.from_native(theirs)
    assert ours.config.backoff_factor == float(np.float32(0.3))
    one, other = Trained(ours), Trained(theirs)
    for _ in range(3):
        one.iterate(["inf"], ["inf"], False)
        other.iterate(["inf"], ["inf"], False)
    assert theirs.get_scale() == pytest.approx(ours.get_scale(), rel=3 * 2.0**-23)


# -- what is wrong with torch's, and right with ours


def collapsed(trained: Trained, count: int) -> float:
    for _ in range(count):
        trained.iterate(["inf"], ["inf"], False)
    return float(trained.scaler.get_scale())


def test_a_scale_that_collapses() -> None:
    """Torch's has no floor: after enough overflows it is 0, and each later step writes NaN."""
    theirs = Trained(torch.amp.GradScaler(DEVICE))
    assert collapsed(theirs, 200) == 0.0
    theirs.iterate(["finite"], ["finite"], False)
    assert theirs.weights[0].isnan().all()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", amp.AmpBridgeWarning)
        for ours, floor in (
            (GradScaler.like("torch"), SMALLEST_SCALE),
            (GradScaler(), 2.0**-24),
        ):
            trained = Trained(ours)
            assert collapsed(trained, 200) == floor
            trained.iterate(["finite"], ["finite"], False)
            assert torch.equal(trained.weights[0].detach().cpu(), torch.full((2,), 0.75))


def test_a_collapsed_scaler_is_not_taken_over() -> None:
    theirs = Trained(torch.amp.GradScaler(DEVICE))
    collapsed(theirs, 200)
    with pytest.raises(amp.StateError, match="had collapsed"):
        GradScaler.from_native(theirs.scaler)


def test_a_scale_without_a_reciprocal() -> None:
    """pytorch#99640: under 2**-127 its reciprocal is inf, and finite gradients become so unseen."""
    theirs = Trained(torch.amp.GradScaler(DEVICE, init_scale=2.0**-130))
    theirs.iterate(["finite"], ["finite"], False)
    assert not theirs.weights[0].isfinite().any()  # a step was taken, and none reported
    assert theirs.scaler.state_dict()["_growth_tracker"] == 1

    with pytest.raises(amp.ArgumentError, match="init_scale"):
        GradScaler.like("torch", init_scale=2.0**-130)
    with pytest.warns(amp.AmpBridgeWarning, match="outside of this scaler's bounds"):
        ours = Trained(GradScaler.from_native(torch.amp.GradScaler(DEVICE, init_scale=2.0**-130)))
    ours.iterate(["finite"], ["finite"], False)
    assert torch.equal(ours.weights[0].detach().cpu(), torch.full((2,), 0.75))


def test_a_scale_at_the_ceiling() -> None:
    """Torch grows to where the reciprocal is subnormal; both stop short of inf."""
    arguments = {"init_scale": 1.5 * 2.0**126, "growth_interval": 1}
    theirs = Trained(torch.amp.GradScaler(DEVICE, **arguments))
    ours = Trained(GradScaler.like("torch", **arguments))
    for trained in (theirs, ours):
        for _ in range(3):
            trained.iterate([], ["finite"], False)
    assert theirs.scaler.get_scale() == 1.5 * 2.0**127
    assert ours.scaler.get_scale() == 1.5 * 2.0**126
    assert 1.0 / theirs.scaler.get_scale() < torch.finfo(torch.float32).tiny


def test_an_interval_that_has_passed() -> None:
    """Torch compares for equality: set under what has been counted, its interval never comes."""
    theirs, ours = Trained(torch.amp.GradScaler(DEVICE)), Trained(GradScaler.like("torch"))
    for trained in (theirs, ours):
        for _ in range(5):
            trained.iterate(["finite"], ["finite"], False)
    theirs.scaler.set_growth_interval(3)
    ours.scaler.load_state_dict({**ours.scaler.state_dict(), "growth_interval": 3})
    for trained in (theirs, ours):
        for _ in range(20):
            trained.iterate(["finite"], ["finite"], False)
    assert theirs.scaler.get_scale() == 2.0**16
    assert ours.scaler.get_scale() == 2.0 ** (16 + 1 + 19 // 3)


# Those whose kernels take the decision, and one that Python steps or not.
ADAMS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "fused": lambda p: optim.AdamW(p, 0.1, fused=True),
    "plain": lambda p: optim.AdamW(p, 0.1),
}


def counted(optimizer: optim.Optimizer) -> list[int]:
    """A list that grows with each call of ``optimizer.step``, which is how Accelerate detects skips."""
    calls: list[int] = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    return calls


@pytest.mark.parametrize("kind", ADAMS)
def test_a_skip_by_a_fused_optimizer_is_reported(kind: str) -> None:
    """accelerate#4242: a fused optimizer's ``step`` is called on overflow too; its kernel skips."""
    weight = nn.Parameter(torch.ones(2, device=DEVICE))
    optimizer = ADAMS[kind](iter([weight]))
    calls, theirs = counted(optimizer), torch.amp.GradScaler(DEVICE)
    theirs.scale((weight * math.inf).sum()).backward()
    theirs.step(optimizer)
    theirs.update()
    assert torch.equal(weight.detach().cpu(), torch.ones(2))
    assert len(calls) == (1 if kind == "fused" else 0)  # "was it called?" is no answer

    model = nn.Linear(2, 1).to(DEVICE)
    optimizer = ADAMS[kind](model.parameters())
    step = amp.train_step(
        lambda m, x: m(x).sum(), model, optimizer, policy="O1:float16", scaler=GradScaler(8.0)
    )
    x = torch.ones(3, 2, device=DEVICE)
    results = [step(x), step(x * math.inf), step(x)]
    assert [r.applied for r in results] == [True, False, True]
    assert {int(slots["step"]) for slots in optimizer.state.values()} == {2}
    ours = GradScaler(8.0)
    optimizer.zero_grad()
    ours.scale(model(x * math.inf).sum()).backward()
    assert not ours.step(optimizer)


@pytest.mark.parametrize("kind", ADAMS)
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler:UserWarning")
def test_a_rate_stands_still_on_skipped_steps(kind: str) -> None:
    """pytorch#44511: the usual loop advances the schedule whether or not the optimizer was stepped."""
    weight = nn.Parameter(torch.ones(2, device=DEVICE))
    optimizer = ADAMS[kind](iter([weight]))
    scheduler = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    theirs = torch.amp.GradScaler(DEVICE)
    for value in (math.inf, math.inf, 1.0):
        optimizer.zero_grad()
        theirs.scale((weight * value).sum()).backward()
        theirs.step(optimizer)
        theirs.update()
        scheduler.step()
    assert scheduler.get_last_lr() == [0.1 * 0.5**3]  # after one step

    model = nn.Linear(2, 1).to(DEVICE)
    optimizer = ADAMS[kind](model.parameters())
    scheduler = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    step = amp.train_step(
        lambda m, x: m(x).sum(), model, optimizer, policy="O1:float16", scheduler=scheduler
    )
    for value in (math.inf, math.inf, 1.0):
        step(torch.full((3, 2), value, device=DEVICE))
    assert scheduler.get_last_lr() == [0.1 * 0.5]


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("value", ["inf", "nan"])
def test_each_optimizer_is_skipped_by_its_own_gradients(bad: int, early: bool, value: str) -> None:
    """Which torch does right, and Paddle's scaler does not."""
    batches = [["finite"], ["finite"]]
    batches[bad] = [value]
    for scaler in (torch.amp.GradScaler(DEVICE), GradScaler.like("torch")):
        trained = Trained(scaler)
        trained.iterate(*batches, early)
        stepped = [not torch.equal(w.detach().cpu(), torch.ones(2)) for w in trained.weights]
        assert stepped == [place != bad for place in range(2)]
        assert all(w.isfinite().all() for w in trained.weights)
        assert scaler.get_scale() == 2.0**15
