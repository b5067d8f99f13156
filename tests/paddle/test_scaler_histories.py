"""Random histories: our scaler against its rule in words, Paddle's own scaler, and Paddle's kernel.

Five searches, of 100 examples each, and of 5,000 each in the nightly profile.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paddle_native_scaler import native_scaler, unlocked, without_print
from paddle_reference import bits

import ampbridge as amp
from ampbridge import GradScaler

pytestmark = pytest.mark.filterwarnings("ignore::ampbridge.errors.AmpBridgeWarning")

GRADIENTS = {"finite": 1.0, "inf": np.inf, "-inf": -np.inf, "nan": np.nan}
FOUND = st.sampled_from([*GRADIENTS, "finite", "finite"])


def parameter(value: float = 1.0) -> paddle.Tensor:
    made = paddle.create_parameter([2], "float32")
    made.set_value(np.full([2], value, np.float32))
    return made


def sgd(*parameters: paddle.Tensor) -> paddle.optimizer.Optimizer:
    return paddle.optimizer.SGD(1.0, parameters=list(parameters))


def give(parameter: paddle.Tensor, found: str, scale: float) -> None:
    """A gradient that is scaled; 1 if it is finite."""
    value = GRADIENTS[found] * scale if found == "finite" else GRADIENTS[found]
    parameter.grad = paddle.to_tensor(np.array([value, scale], np.float32))


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(state))
    return loaded


# -- the rule in words


@dataclass
class Worded:
    """What ``GradScaler`` promises of each argument, one sentence after the other."""

    settings: dict[str, Any]
    scale: Any
    good: int = 0
    bad: int = 0
    forgiven: int = 0
    """Overflows that were forgiven, where they are not counted anew after a backoff."""

    def __post_init__(self) -> None:
        self.good = -self.settings["growth_delay"]

    def overflow(self) -> None:
        self.good = -self.settings["growth_delay"]
        if not self.settings["dynamic"]:
            self.good = self.bad = 0
            return
        self.bad += 1
        if self.bad + self.forgiven < self.settings["backoff_interval"]:
            return
        self.bad = 0
        if self.settings["backoff_count"] != "consecutive":
            self.forgiven = self.settings["backoff_interval"] - 1
        smaller = np.float32(self.scale) * np.float32(self.settings["backoff_factor"])
        self.scale = max(smaller, np.float32(self.settings["min_scale"]))

    def finite(self) -> None:
        if not self.settings["dynamic"]:
            return
        self.good += 1
        grows = self.good == self.settings["growth_interval"]
        if grows or self.settings["backoff_count"] != "until_growth":
            self.bad = self.forgiven = 0
        if not grows:
            return
        self.good = 0
        with np.errstate(over="ignore"):
            larger = np.float32(self.scale) * np.float32(self.settings["growth_factor"])
        if larger <= self.settings["max_scale"]:
            self.scale = larger
        elif self.settings["at_max_scale"] == "clamp":
            self.scale = np.float32(self.settings["max_scale"])


SETTINGS = st.fixed_dictionaries(
    {
        "growth_factor": st.sampled_from([1.0, 1.5, 2.0, 3.0]),
        "backoff_factor": st.sampled_from([0.3, 0.5, 0.8, 1.0]),
        "growth_interval": st.integers(1, 4),
        "backoff_interval": st.integers(1, 3),
        "min_scale": st.sampled_from([2.0**-126, 2.0**-4, 1.0]),
        "max_scale": st.sampled_from([2.0**6, 2.0**24, 2.0**127]),
        "dynamic": st.sampled_from([True, True, True, False]),
        "growth_delay": st.integers(0, 2),
        "backoff_count": st.sampled_from(["consecutive", "until_finite", "until_growth"]),
        "at_max_scale": st.sampled_from(["clamp", "keep"]),
    }
)


@given(
    settings=SETTINGS,
    first=st.sampled_from([1.0, 3.0, 2.0**6]),
    history=st.lists(st.tuples(FOUND, st.booleans(), st.booleans()), max_size=24),
)
def test_the_rule_in_words(
    settings: dict[str, Any], first: float, history: list[tuple[str, bool, bool]]
) -> None:
    """With or without an early unscale, and with a new scaler that goes on where the old one was."""
    p = parameter()
    optimizer = sgd(p)
    worded = Worded(settings, np.float32(first))
    scaler = GradScaler(first, **settings)
    for found, early, anew in history:
        if anew:
            state, scaler = through_json(scaler.state_dict()), GradScaler()
            scaler.load_state_dict(state)
        before = p.numpy()
        scaler.scale(paddle.ones([]))
        give(p, found, scaler.get_scale())
        if early:
            scaler.unscale(optimizer)
            assert scaler.found_inf(optimizer) == (found != "finite")
        assert scaler.step(optimizer) == (found == "finite")
        scaler.update()
        worded.finite() if found == "finite" else worded.overflow()
        assert scaler.get_scale() == float(worded.scale)
        assert (p.numpy() == before).all() == (found != "finite")


# -- paddle.amp.GradScaler

NATIVE_SETTINGS = st.fixed_dictionaries(
    {
        "init_loss_scaling": st.sampled_from([1.0, 3.0, 1000.0, 2.0**16]),
        "incr_ratio": st.sampled_from([1.5, 2.0, 3.0]),
        "decr_ratio": st.sampled_from([0.3, 0.5, 0.8]),
        "incr_every_n_steps": st.integers(1, 4),
        "decr_every_n_nan_or_inf": st.integers(1, 3),
        "use_dynamic_loss_scaling": st.sampled_from([True, True, True, False]),
    }
)
OURS = {
    "init_loss_scaling": "init_scale",
    "incr_ratio": "growth_factor",
    "decr_ratio": "backoff_factor",
    "incr_every_n_steps": "growth_interval",
    "decr_every_n_nan_or_inf": "backoff_interval",
    "use_dynamic_loss_scaling": "dynamic",
}


def native_form(scaler: GradScaler) -> dict[str, Any]:
    """Our state in Paddle's words."""
    state = scaler.state_dict()
    names = {theirs: ours for theirs, ours in OURS.items() if theirs != "init_loss_scaling"}
    names |= {"scale": "scale", "incr_count": "good_steps", "decr_count": "bad_steps"}
    return {theirs: state[ours] for theirs, ours in names.items()}


def plain(state: dict[str, Any]) -> dict[str, Any]:
    """Paddle's state, ratios in float32 as its kernels take them."""
    state = {key: np.ravel(value)[0].item() for key, value in state.items()}
    return {k: float(np.float32(v)) if k.endswith("ratio") else v for k, v in state.items()}


def their_state_in_ours(ours: GradScaler, theirs: Any) -> tuple[GradScaler, Any]:
    fresh = GradScaler.like("paddle")
    fresh.load_state_dict(theirs.state_dict())
    return fresh, theirs


def ours_from_theirs(ours: GradScaler, theirs: Any) -> tuple[GradScaler, Any]:
    return GradScaler.from_native(theirs), theirs


def theirs_from_ours(ours: GradScaler, theirs: Any) -> tuple[GradScaler, Any]:
    with unlocked():
        return ours, ours.to_native("paddle")


def other_settings(ours: GradScaler, theirs: Any) -> tuple[GradScaler, Any]:
    """Changed late, on theirs by its setters."""
    counts = ours.state_dict()["good_steps"] + 1, ours.state_dict()["bad_steps"] + 1
    theirs.set_incr_every_n_steps(counts[0] + 1)
    theirs.set_decr_every_n_nan_or_inf(counts[1])
    theirs.set_incr_ratio(4.0)
    changes = {"growth_interval": counts[0] + 1, "backoff_interval": counts[1]}
    ours.load_state_dict({**ours.state_dict(), **changes, "growth_factor": 4.0})
    return ours, theirs


EXCHANGES: list[Callable[..., tuple[GradScaler, Any]]] = [
    lambda ours, theirs: (ours, theirs),
    their_state_in_ours,
    ours_from_theirs,
    theirs_from_ours,
    other_settings,
]


@given(
    settings=NATIVE_SETTINGS,
    history=st.lists(
        st.tuples(FOUND, st.sampled_from(range(len(EXCHANGES))), st.booleans()), max_size=16
    ),
)
def test_paddle_s_own_scaler(
    settings: dict[str, Any], history: list[tuple[str, int, bool]]
) -> None:
    """In lockstep, while states go from one to the other; known bugs of the native one aside.

    Those are in ``test_scaler.py``: here one optimizer of float32 steps, far from the bounds.
    """
    p, q = parameter(), parameter()
    mine, native_optimizer = sgd(p), sgd(q)
    ours = GradScaler.like("paddle", **{OURS[key]: value for key, value in settings.items()})
    theirs = native_scaler(**settings)
    with without_print():
        for found, exchange, early in history:
            ours, theirs = EXCHANGES[exchange](ours, theirs)
            ours.scale(paddle.ones([]))
            for each in (p, q):
                give(each, found, ours.get_scale())
            if early:
                ours.unscale(mine)
                theirs.unscale_(native_optimizer)
            ours.step(mine)
            theirs.step(native_optimizer)
            ours.update()
            theirs.update()
            assert native_form(ours) == plain(theirs.state_dict())
            assert bits(p) == bits(q)


# -- the kernel of static graphs and fleet


class Kernel:
    """The state that ``update_loss_scaling_`` keeps, in its own tensors."""

    def __init__(self, scale: float, every: int, bad_every: int, incr: float, decr: float) -> None:
        self.scale = paddle.to_tensor([scale], dtype="float32")
        self.good, self.bad = (paddle.zeros([1], "int32") for _ in range(2))
        self._rule = every, bad_every, incr, decr

    def update(self, overflow: bool) -> None:
        found, grads = paddle.to_tensor([overflow]), [paddle.ones([1])]
        paddle._C_ops.update_loss_scaling_(
            grads, found, self.scale, self.good, self.bad, *self._rule, False
        )

    def state(self) -> tuple[float, int, int]:
        return self.scale.item(), self.good.item(), self.bad.item()


@given(
    first=st.sampled_from([1.0, 1.25, 2.0**15, 2.0**125, 3.0 * 2.0**124]),
    every=st.integers(1, 4),
    bad_every=st.integers(1, 3),
    incr=st.sampled_from([1.5, 2.0, 3.0]),
    decr=st.sampled_from([0.3, 0.5, 0.8]),
    history=st.lists(FOUND, max_size=24),
)
def test_the_kernel_of_fleet(
    first: float, every: int, bad_every: int, incr: float, decr: float, history: list[str]
) -> None:
    p = parameter()
    optimizer = sgd(p)
    kernel = Kernel(first, every, bad_every, incr, decr)
    scaler = GradScaler.like(
        "paddle_fleet",
        init_scale=first,
        growth_interval=every,
        backoff_interval=bad_every,
        growth_factor=incr,
        backoff_factor=decr,
    )
    scaler.scale(paddle.ones([]))
    for found in history:
        give(p, found, scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        kernel.update(found != "finite")
        state = scaler.state_dict()
        if kernel.scale.item() > 2.0**127:
            return  # ours ends there, where its double is no float32 any more
        assert (state["scale"], state["good_steps"], state["bad_steps"]) == kernel.state()


# -- train_step


class Scalar(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.w = self.create_parameter([1], default_initializer=paddle.nn.initializer.Constant(0.0))


def loss_fn(model: paddle.nn.Layer, factor: paddle.Tensor) -> Any:
    return (model.w * factor).sum()


@given(
    settings=SETTINGS,
    accumulate=st.sampled_from([1, 2, 4]),
    drop_step=st.booleans(),
    history=st.lists(st.tuples(FOUND, st.booleans()), max_size=16),
)
def test_accumulation(
    settings: dict[str, Any], accumulate: int, drop_step: bool, history: list[tuple[str, bool]]
) -> None:
    """Micro-batches with gradients of 1, 2, 3 ..., of which a step or a micro-batch is dropped.

    The state goes to a new step now and then, between steps. All numbers are exact: the scale is a
    power of two, and the counts that the gradients are divided by are.
    """
    settings = {**settings, "growth_factor": 2.0, "backoff_factor": 0.5}
    settings |= {"max_scale": min(settings["max_scale"], 2.0**24), "min_scale": 2.0**-4}
    model = Scalar()

    def make() -> amp.TrainStep:
        return amp.train_step(
            loss_fn,
            model,
            sgd(model.w),
            scaler=GradScaler(4.0, **settings),
            accumulate=accumulate,
            on_overflow="drop_step" if drop_step else "drop_microbatch",
        )

    step, worded = make(), Worded(settings, np.float32(4.0))
    taken: list[float] = []
    weight, steps = 0.0, 0
    for number, (found, anew) in enumerate(history, start=1):
        if anew and not taken:
            state, step = through_json(step.state_dict()), make()
            step.load_state_dict(state)
        factor = number if found == "finite" else GRADIENTS[found]
        scale = float(worded.scale)
        result = step(np.array([factor], np.float32))
        assert result.scale == scale
        if not drop_step:
            worded.finite() if found == "finite" else worded.overflow()
            if found != "finite":
                assert result.reason == found.removeprefix("-")
                continue
        taken.append(factor)
        if len(taken) < accumulate:
            assert result.reason == "accumulating"
            continue
        whole = bool(np.isfinite(taken).all())
        if drop_step:
            worded.finite() if whole else worded.overflow()
        weight -= sum(taken) / accumulate if whole else 0.0
        steps, taken = steps + 1, []
        assert (result.applied, result.step) == (whole, steps)
        assert step.scaler is not None
        assert step.scaler.get_scale() == float(worded.scale)
        assert model.w.item() == weight


# -- several optimizers

Iteration = list[tuple[int, str, bool]]
ITERATION = st.permutations(range(3)).flatmap(
    lambda order: st.tuples(
        *(
            st.tuples(
                st.just(each), st.sampled_from([*GRADIENTS, "finite", "nothing"]), st.booleans()
            )
            for each in order
        )
    )
)


@given(settings=SETTINGS, history=st.lists(ITERATION, max_size=8))
def test_several_optimizers(settings: dict[str, Any], history: list[Iteration]) -> None:
    """Each is skipped by its own gradients, in any order; any overflow moves the one scale."""
    tensors = [parameter(float(number)) for number in range(3)]
    optimizers = [sgd(p) for p in tensors]
    settings = {**settings, "min_scale": 1.0}
    scaler, worded = GradScaler(8.0, **settings), Worded(settings, np.float32(8.0))
    for iteration in history:
        before = [p.numpy() for p in tensors]
        for each, found, _ in iteration:
            tensors[each].grad = None
            if found != "nothing":
                give(tensors[each], found, scaler.get_scale())
        scaler.scale(paddle.ones([]))
        for each, found, early in iteration:
            if early and found != "nothing":
                scaler.unscale(optimizers[each])
        for each, found, early in iteration:
            if found == "nothing":
                with pytest.raises(amp.CallOrderError, match="not one gradient"):
                    (scaler.unscale if early else scaler.step)(optimizers[each])
            else:
                assert scaler.step(optimizers[each]) == (found == "finite")
        if all(found == "nothing" for _, found, _ in iteration):
            continue
        scaler.update()
        for each, found, _ in iteration:
            assert (tensors[each].numpy() == before[each]).all() == (found != "finite")
        overflows = any(found not in ("finite", "nothing") for _, found, _ in iteration)
        worded.overflow() if overflows else worded.finite()
        assert scaler.get_scale() == float(worded.scale)
