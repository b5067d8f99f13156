"""``Policy(masters=..., slots=...)`` on torch: any optimizer, chunk by chunk, and what is held meanwhile."""

from __future__ import annotations

import copy
import gc
import itertools
import re
import warnings
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import ByHand, Net, batches, loss_fn, policy
from kept_masters import SLOTS, KeptSlots, Trajectories
from test_master_weights import (
    OPTIMIZERS,
    assert_bits_of_the_loop_by_hand,
    assert_same_bits,
    decorated,
    float32_weights,
    train,
)
from torch import Tensor, nn, optim

import ampbridge as amp
from ampbridge import workloads
from ampbridge_torch import _private
from ampbridge_torch.model import rounding
from ampbridge_torch.testing import TorchHarness


class TestMasters(KeptSlots, Trajectories):
    harness = TorchHarness()

    def moments(self, optimizer: Any) -> list[Any]:
        states = [optimizer.state[p] for p in optimizer.param_groups[0]["params"]]
        kinds = ("exp_avg", "exp_avg_sq", "momentum_buffer")
        return [state[kind] for state in states for kind in kinds if kind in state]

    def refuses_others(self, chosen: amp.Policy) -> bool:
        return (chosen.masters, chosen.slots) != (None, "float32")  # which is torch's own training


@pytest.mark.slow
def test_digits_are_learnt_as_with_float32_slots() -> None:
    """The mean loss of four seeds lies among theirs."""
    final: dict[str, list[float]] = {slots: [] for slots in SLOTS}
    for slots, seed in itertools.product(SLOTS, range(4)):
        digits = workloads.find("digits-mlp")("torch", seed)
        optimizer = optim.AdamW(digits.model.parameters(), 1e-3)
        chosen = policy("bfloat16", slots=slots)
        step = amp.train_step(digits.loss_fn, digits.model, optimizer, policy=chosen)
        losses = [step(*batch).loss for batch in digits.first(300)]
        final[slots].append(float(np.mean(losses[-20:])))
    assert min(final["float32"]) <= np.mean(final["bfloat16"]) <= max(final["float32"])


@pytest.fixture(params=[1, 2**24], ids=["one by one", "all at once"])
def chunk(request: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(rounding, "CHUNK", request.param)
    return int(request.param)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_kahan_is_bit_equal_to_float32_masters_by_hand_resumed_half_way(
    name: str, chunk: int
) -> None:
    assert_bits_of_the_loop_by_hand("bfloat16", OPTIMIZERS[name], masters="kahan")


def low_slots(optimizer: optim.Optimizer) -> list[Tensor]:
    """Those of the two linear layers that have a number for each of their parameters'."""
    parameters = optimizer.param_groups[0]["params"]
    return [
        slot
        for parameter in (*parameters[:2], *parameters[4:])
        for _, slot in sorted(optimizer.state[parameter].items())
        if isinstance(slot, Tensor) and slot.shape == parameter.shape
    ]


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "SGD"])  # it has no slots
@pytest.mark.parametrize(
    "choice",
    [{"masters": m, "slots": "bfloat16"} for m in ("float32", "stochastic", None)],
    ids=str,
)
def test_draws_do_not_depend_on_chunks_and_go_on_when_resumed(
    name: str, choice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, examples, found = OPTIMIZERS[name], list(batches(6)), []
    for size in (1, 2**24):
        monkeypatch.setattr(rounding, "CHUNK", size)
        model, optimizer = decorated("bfloat16", make, **choice)
        train(model, optimizer, examples[:3])
        state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        train(model, optimizer, examples[3:])
        resumed, its_optimizer = decorated("bfloat16", make, **choice)
        resumed.load_state_dict(state[0])
        its_optimizer.load_state_dict(state[1])
        train(resumed, its_optimizer, examples[3:])
        kept = low_slots(optimizer)
        assert {slot.dtype for slot in kept} <= {torch.bfloat16}
        every = [slot for state in optimizer.state.values() for slot in state.values()]
        assert [getattr(x, "dtype", None) for x in every].count(torch.bfloat16) == len(kept)
        assert_same_bits(low_slots(its_optimizer), kept)
        found += [float32_weights(model, optimizer), float32_weights(resumed, its_optimizer)]
    for weights in found[1:]:
        assert_same_bits(weights, found[0])


@pytest.mark.parametrize(
    "choice",
    [{"masters": m} for m in ("float32", "kahan", "stochastic")]
    + [{"masters": m, "slots": "bfloat16"} for m in ("float32", "stochastic", None)],
    ids=str,
)
def test_states_that_are_loaded_before_decorating_go_on_with_the_same_bits(choice: Any) -> None:
    make, examples = OPTIMIZERS["AdamW"], list(batches(6))
    model, optimizer = decorated("bfloat16", make, **choice)
    train(model, optimizer, examples[:3])
    state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, examples[3:])
    resumed = Net()
    its_optimizer = make(resumed.parameters())
    resumed.load_state_dict(state[0])
    its_optimizer.load_state_dict(state[1])
    amp.decorate(resumed, its_optimizer, policy("bfloat16", **choice))
    train(resumed, its_optimizer, examples[3:])
    assert_same_bits(float32_weights(resumed, its_optimizer), float32_weights(model, optimizer))


def trained_without_masters(masters: str) -> tuple[Net, optim.Optimizer]:
    """In float32, from a state with masters; some weights have not moved by half a unit of bfloat16."""
    model, optimizer = decorated("bfloat16", slowly, masters=masters)
    train(model, optimizer, batches(3))
    state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    plain = Net()
    its_optimizer = slowly(plain.parameters())
    plain.load_state_dict(state[0])
    its_optimizer.load_state_dict(state[1])
    low = [p.detach().bfloat16() for p in plain.parameters()]
    train(plain, its_optimizer, batches(3))
    pairs = zip(plain.parameters(), low, strict=True)
    assert any((p.bfloat16() == before).any() for p, before in pairs)
    return plain, its_optimizer


def slowly(parameters: Any) -> optim.Optimizer:
    return optim.AdamW(parameters, 1e-5)


@pytest.mark.parametrize("masters", ["float32", "kahan"])
def test_masters_of_a_state_do_not_undo_what_was_trained_in_float32_since(masters: str) -> None:
    plain, its_optimizer = trained_without_masters(masters)
    trained = copy.deepcopy(list(plain.parameters()))
    with pytest.warns(amp.AmpBridgeWarning, match="masters of other weights.*: inner.weight, "):
        amp.decorate(plain, its_optimizer, policy("bfloat16", masters=masters))
    assert_same_bits(float32_weights(plain, its_optimizer), trained)


@pytest.mark.parametrize("order", ["model first", "optimizer first", "amp.load_weights first"])
@pytest.mark.parametrize("masters", ["float32", "kahan"])
def test_nor_where_it_is_loaded_into_what_is_decorated_already(
    masters: str, order: str, tmp_path: Path
) -> None:
    """And goes on with the bits of a state without masters."""
    plain, its_optimizer = trained_without_masters(masters)
    amp.train_step(loss_fn, plain, its_optimizer, policy="O0").save(tmp_path)
    weights, state = copy.deepcopy((plain.state_dict(), its_optimizer.state_dict()))
    words = r"masters of other weights than the model's, .*: inner.weight, .*\nHint: "
    found = []
    for has_masters in (True, False):
        if not has_masters:
            for slots in state["state"].values():
                slots.pop("master_weight", None)
        model, optimizer = decorated("bfloat16", slowly, masters=masters)
        if order == "model first":
            model.load_state_dict(weights)
        elif order == "amp.load_weights first":
            amp.load_weights(tmp_path, model)
        is_told = has_masters and order != "optimizer first"
        with pytest.warns(amp.AmpBridgeWarning, match=words) if is_told else nullcontext():
            optimizer.load_state_dict(copy.deepcopy(state))
        if order == "optimizer first":
            model.load_state_dict(weights)
        assert_same_bits(masters_of(model), list(plain.parameters()))
        train(model, optimizer, batches(3))
        found.append(float32_weights(model, optimizer))
    assert_same_bits(*found)


def test_nor_where_a_layer_is_float32_now() -> None:
    plain, its_optimizer = trained_without_masters("float32")
    model = Net()
    optimizer = slowly(model.parameters())
    amp.decorate(model, optimizer, policy("bfloat16", keep=["inner", "outer"]))
    model.load_state_dict(plain.state_dict())
    optimizer.load_state_dict(its_optimizer.state_dict())
    assert_same_bits(list(model.parameters()), list(plain.parameters()))


def masters_of(model: nn.Module) -> list[Tensor]:
    with amp.undecorated(model):
        return [p.detach().clone() for p in model.parameters()]


def test_after_a_step_the_masters_of_a_state_come_before_its_weights_again() -> None:
    model, optimizer = decorated("bfloat16", OPTIMIZERS["AdamW"])
    train(model, optimizer, batches(3))
    expected, state = masters_of(model), copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    other, its_optimizer = decorated("bfloat16", OPTIMIZERS["AdamW"])
    other.load_state_dict(Net().state_dict())
    train(other, its_optimizer, batches(1))
    its_optimizer.load_state_dict(state[1])
    other.load_state_dict(state[0])
    assert_same_bits(masters_of(other), expected)


@pytest.mark.parametrize(
    "choice",
    [{"masters": "stochastic"}, {"masters": None}, {"masters": None, "slots": "bfloat16"}],
    ids=str,
)
def test_float32_weights_of_a_state_dict_are_rounded_with_a_warning(choice: Any) -> None:
    model, _ = decorated("bfloat16", OPTIMIZERS["SGD momentum"], **choice)
    weights = Net().state_dict()
    low = {name: value.bfloat16() for name, value in weights.items()}
    model.load_state_dict(low)
    model.load_state_dict({name: value.float() for name, value in low.items()})
    words = rf"weights were saved in float32. masters={choice['masters']!r} rounds them to bfloat16"
    with pytest.warns(amp.AmpBridgeWarning, match=words):
        model.load_state_dict(weights)
    assert_same_bits([model.inner.weight.detach()], [low["inner.weight"]])


def test_one_load_warns_once_of_all_layers() -> None:
    """Each load does so, under a filter that lets repeated warnings through, as ``always`` does."""
    model, _ = decorated("bfloat16", OPTIMIZERS["SGD momentum"], masters="stochastic")
    weights = Net().state_dict()
    for loads in (1, 2):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            nn.Sequential(model).load_state_dict({f"0.{k}": v for k, v in weights.items()})
        assert len(told) == 1, loads


@pytest.mark.parametrize("order", ["decorated first", "loaded first"])
@pytest.mark.parametrize(
    "choice",
    [{"masters": "stochastic"}, {"masters": None}, {"masters": None, "slots": "bfloat16"}],
    ids=str,
)
def test_a_state_with_masters_is_rounded_with_a_warning(choice: Any, order: str) -> None:
    model, optimizer = decorated("bfloat16", OPTIMIZERS["SGD momentum"])
    train(model, optimizer, batches(3))
    weights, state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    other = Net()
    its_optimizer = OPTIMIZERS["SGD momentum"](other.parameters())
    chosen = policy("bfloat16", **choice)
    words = rf"weights were saved in float32 .*masters={chosen.masters!r} rounds them to bfloat16"

    def load_and_decorate() -> None:
        its_optimizer.load_state_dict(state)
        amp.decorate(other, its_optimizer, chosen)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The optimizer's slots|masters=None on torch")
        if order == "decorated first":
            amp.decorate(other, its_optimizer, chosen)
        other.load_state_dict(weights)
        with pytest.warns(amp.AmpBridgeWarning, match=words):
            load_and_decorate()
    assert_same_bits([p.detach() for p in other.parameters()], list(weights.values()))
    assert all(
        "master_weight" not in slots for slots in its_optimizer.state_dict()["state"].values()
    )


def test_masters_that_torch_rounds_in_a_state_of_low_parameters_are_dropped() -> None:
    """The optimizer that it is loaded into was not decorated, and the model was."""
    model, optimizer = decorated("bfloat16", OPTIMIZERS["AdamW"])
    train(model, optimizer, batches(3))
    with amp.undecorated(model):
        masters = [p.detach().clone() for p in model.parameters()]
    another = OPTIMIZERS["AdamW"](model.parameters())
    another.load_state_dict(optimizer.state_dict())
    with pytest.warns(amp.AmpBridgeWarning, match=r"dropped: .*\nHint: amp.decorate"):
        amp.decorate(model, another, policy("bfloat16"))
    assert_same_bits(float32_weights(model, another), masters)


def test_ties_of_kahan_are_its_masters() -> None:
    """They are rounded away from zero, and by torch to even."""
    model, optimizer = decorated("bfloat16", OPTIMIZERS["SGD"], masters="kahan")
    tie = torch.full(model.inner.weight.shape, 1 + 2.0**-8)
    model.load_state_dict({"inner.weight": tie}, strict=False)
    state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    assert (state[0]["inner.weight"] == 1 + 2.0**-7).all()
    other = Net()
    its_optimizer = OPTIMIZERS["SGD"](other.parameters())
    other.load_state_dict(state[0])
    its_optimizer.load_state_dict(state[1])
    amp.decorate(other, its_optimizer, policy("bfloat16", masters="kahan"))
    amp.undecorate(other, its_optimizer)
    assert torch.equal(other.inner.weight, tie)


class WithoutSlots(optim.Optimizer):
    """What only its first update shows."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter -= 0.1 * parameter.grad


def test_an_optimizer_whose_first_update_makes_no_slots_is_told_of_once() -> None:
    model, optimizer = decorated("bfloat16", WithoutSlots, slots="bfloat16")
    train(model, optimizer, batches(1))
    with pytest.warns(amp.AmpBridgeWarning, match="of WithoutSlots, which keeps no moments"):
        train(model, optimizer, batches(1))
    train(model, optimizer, batches(1))


def test_seeds_one_by_one_draw_evenly_and_apart() -> None:
    like, count = torch.zeros(2), 20_000
    pairs = [(seed, -seed) for seed in range(count // 2)]  # of weights, and of slots
    drawn = np.array([rounding.seeded(seed)(like).numpy() for pair in pairs for seed in pair])
    assert drawn.min() >= 0
    assert drawn.max() < 2**16
    bound = 4 / np.sqrt(count)
    for column in drawn.T / 2**16:
        assert abs(column.mean() - 0.5) < bound * column.std()
        assert abs(np.corrcoef(column[:-1], column[1:])[0, 1]) < bound


# -- bytes


def held_bytes() -> int:
    """Of all tensors that there are, each storage once."""
    gc.collect()
    tensors = [x for x in gc.get_objects() if isinstance(x, Tensor)]
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
    return sum(storages.values())


@pytest.mark.parametrize("slots, of_moments", [("float32", 8), ("bfloat16", 4)])
@pytest.mark.parametrize(
    "masters, width", [("float32", 6), ("kahan", 4), ("stochastic", 2), (None, 2)]
)
def test_bytes_for_each_weight(masters: Any, width: int, slots: Any, of_moments: int) -> None:
    before = held_bytes()
    model = nn.Linear(1000, 1000, bias=False)
    optimizer = optim.Adam(model.parameters(), 0.1)
    chosen = policy("bfloat16", masters=masters, slots=slots)
    step = amp.train_step(lambda model, x: model(x).sum(), model, optimizer, policy=chosen)
    step(torch.ones(1, 1000))
    if masters is None:
        of_moments = 4  # as torch makes them for low parameters
    assert (held_bytes() - before) / 1e6 == pytest.approx(width + of_moments, abs=0.02)


@pytest.mark.parametrize(
    "masters, slots, held",
    [("kahan", "float32", 2), ("stochastic", "bfloat16", 3), ("float32", "bfloat16", 1)],
)
def test_no_second_copy_of_all_weights_or_slots_exists(
    masters: str, slots: str, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, count = 256 * 256, 12
    monkeypatch.setattr(rounding, "CHUNK", size)
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(count)))
    momentum = 0.9 if slots == "bfloat16" else 0
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=momentum)
    amp.decorate(model, optimizer, policy("bfloat16", masters=masters, slots=slots))
    model(torch.ones(1, 256)).sum().backward()
    optimizer.step()
    grads = [p.grad for p in model.parameters()]  # no objects before
    before, seen, step = held_bytes(), [], _private.step_without_hooks

    def noting(stepping: optim.Optimizer) -> None:
        step(stepping)
        seen.append(held_bytes() - before)

    monkeypatch.setattr(_private, "step_without_hooks", noting)
    optimizer.step()
    assert len(seen) == count - 1
    assert max(seen) <= held * 4 * size + 1000  # a weight and its gradient; a moment
    assert len(grads) == count


@pytest.mark.parametrize("way", ["step.save", "state_dict", "copy"])
def test_draws_go_on_from_what_was_kept_while_undecorated(way: str, tmp_path: Path) -> None:
    chosen, examples = policy("bfloat16", masters="stochastic"), list(batches(6))
    model, optimizer = decorated("bfloat16", OPTIMIZERS["AdamW"], masters="stochastic")
    train(model, optimizer, examples[:3])
    amp.undecorate(model, optimizer)
    other = Net()
    its_optimizer = OPTIMIZERS["AdamW"](other.parameters())
    if way == "step.save":
        amp.train_step(loss_fn, model, optimizer, policy=chosen).save(tmp_path)
        amp.train_step(loss_fn, other, its_optimizer, policy=chosen).load(tmp_path)
    elif way == "state_dict":
        other.load_state_dict(copy.deepcopy(model.state_dict()))
        its_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    else:
        other, its_optimizer = copy.deepcopy((model, optimizer))
    found = []
    for each, its in ((model, optimizer), (other, its_optimizer)):
        amp.decorate(each, its, chosen)
        train(each, its, examples[3:])
        found.append(float32_weights(each, its))
    assert_same_bits(*found)


def test_a_checkpoint_without_a_count_begins_to_count(tmp_path: Path) -> None:
    chosen, examples = policy("bfloat16", masters="stochastic"), list(batches(6))
    model = Net()
    optimizer = OPTIMIZERS["AdamW"](model.parameters())
    step = amp.train_step(loss_fn, model, optimizer, policy=chosen)
    step.save(tmp_path)
    found = []
    for _ in range(2):
        step.load(tmp_path)
        for example in examples:
            step(*example)
        with amp.undecorated(model, optimizer):
            found.append([p.detach().clone() for p in model.parameters()])
    assert_same_bits(*found)


# -- what others do


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loaded_state_is_kept_exactly(dtype: torch.dtype) -> None:
    make = OPTIMIZERS["AdamW"]
    model, optimizer = decorated("bfloat16", make, masters="kahan")
    train(model, optimizer, batches(3))
    torch.manual_seed(1)
    state = {name: torch.randn(p.shape).to(dtype) for name, p in model.named_parameters()}
    model.load_state_dict(state)
    assert_same_bits(float32_weights(model, optimizer), [x.float() for x in state.values()])


@pytest.mark.parametrize("masters", ["float32", "kahan", "stochastic"])
def test_states_are_loaded_in_either_order(masters: str) -> None:
    """The model's has the low weights alone, and takes nothing from what the optimizer's has beside them."""
    model, optimizer = decorated("bfloat16", OPTIMIZERS["AdamW"], masters=masters)
    train(model, optimizer, batches(3))
    state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    expected = float32_weights(model, optimizer)
    for place in (0, 1):
        other, its_optimizer = decorated("bfloat16", OPTIMIZERS["AdamW"], masters=masters)
        loads: list[tuple[Any, Any]] = [(other, state[0])]
        loads.insert(place, (its_optimizer, state[1]))
        for owner, saved in loads:
            owner.load_state_dict(copy.deepcopy(saved))
        assert_same_bits(float32_weights(other, its_optimizer), expected)


@pytest.mark.parametrize("masters", ["float32", "kahan"])
def test_low_weights_of_others_take_nothing_from_masters_and_its_own_do(masters: str) -> None:
    """Also where a number of theirs happens to be equal."""
    model, optimizer = decorated("bfloat16", OPTIMIZERS["AdamW"], masters=masters)
    train(model, optimizer, batches(3))
    with amp.undecorated(model):
        expected = [p.detach().clone() for p in model.parameters()]
    own = copy.deepcopy(model.state_dict())
    model.load_state_dict(own)
    with amp.undecorated(model):
        assert_same_bits([p.detach() for p in model.parameters()], expected)
    others = {name: value.clone() for name, value in own.items()}
    for value in others.values():
        value.view(-1)[0] += 1
    model.load_state_dict(others)
    assert_same_bits(float32_weights(model, optimizer), [x.float() for x in others.values()])


WRITES: dict[str, Callable[[Any], object]] = {
    "data in place": lambda p: p.data.zero_(),
    "in place": lambda p: p.detach().zero_(),
    "other data": lambda p: setattr(p, "data", torch.zeros_like(p)),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("masters", ["kahan", "stochastic"])
def test_what_others_write_is_within_half_a_unit(write: str, masters: str) -> None:
    model, optimizer = decorated("bfloat16", OPTIMIZERS["SGD"], masters=masters)
    train(model, optimizer, batches(3))
    WRITES[write](model.inner.weight)
    assert float32_weights(model, optimizer)[0].abs().max() < 1e-40


def test_a_closure_is_called_once(chunk: int) -> None:
    make, calls = OPTIMIZERS["AdamW"], 0
    x, y = next(batches(1))
    by_hand = ByHand("bfloat16", make).train(1)
    model, optimizer = decorated("bfloat16", make, masters="kahan")

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = loss_fn(model, x, y)
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == by_hand.loss.item()
    assert calls == 1
    assert_same_bits(float32_weights(model, optimizer), by_hand.masters)


def test_lbfgs_steps_all_at_once(chunk: int) -> None:
    x, y = next(batches(1))
    found = []
    for masters in ("float32", "kahan"):
        model = Net()
        optimizer = optim.LBFGS(model.parameters(), 0.1)
        amp.decorate(model, optimizer, policy("bfloat16", masters=masters))

        def closure(model: Net = model, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = loss_fn(model, x, y)
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
        found.append(float32_weights(model, optimizer))
    assert_same_bits(*found)


def test_a_step_that_raises_in_a_chunk_leaves_the_parameters_in_their_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounding, "CHUNK", 1)
    make = OPTIMIZERS["AdamW"]
    model, optimizer = decorated("bfloat16", make, masters="kahan", slots="bfloat16")
    parameters, step = list(model.parameters()), _private.step_without_hooks

    def failing(stepping: optim.Optimizer) -> None:
        step(stepping)
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(_private, "step_without_hooks", failing)
        with pytest.raises(RuntimeError, match="out of memory"):
            train(model, optimizer, batches(1))
    optimizer.state_dict()  # puts them back, as any call does
    assert {slot.dtype for slot in low_slots(optimizer)} == {torch.bfloat16}
    train(model, optimizer, batches(2))
    assert list(map(id, optimizer.param_groups[0]["params"])) == list(map(id, parameters))
    assert set(optimizer.state) == set(parameters)
    assert all(optimizer.state[p]["step"] in (2, 3) for p in parameters)


@pytest.mark.filterwarnings("ignore:A copy of a model at O2")
@pytest.mark.parametrize("masters", ["kahan", "stochastic"])
def test_a_copy_keeps_the_values(masters: str) -> None:
    model, optimizer = decorated("bfloat16", OPTIMIZERS["AdamW"], masters=masters)
    train(model, optimizer, batches(3))
    copied = copy.deepcopy(model)
    assert_same_bits(float32_weights(copied, None), float32_weights(model, optimizer))


def test_what_is_written_while_undecorated_for_a_block_is_kept() -> None:
    make = OPTIMIZERS["AdamW"]
    model, optimizer = decorated("bfloat16", make, masters="kahan", slots="bfloat16")
    train(model, optimizer, batches(3))
    slots = low_slots(optimizer)
    with amp.undecorated(model):
        assert model.inner.weight.dtype is torch.float32
        inside = low_slots(optimizer)
        assert_same_bits(inside, [slot.float() for slot in slots])
        with torch.no_grad():
            model.inner.weight.fill_(1 + 2.0**-20)
    assert model.inner.weight.dtype is torch.bfloat16
    assert_same_bits(low_slots(optimizer), slots)
    assert (float32_weights(model, optimizer)[0] == 1 + 2.0**-20).all()


def test_an_optimizer_that_was_not_decorated_is_told_what_it_would_not_do() -> None:
    words = {
        "masters='float32'": "would update their 16-bit values and not their float32 masters.\n",
        "masters='kahan'": "would not update and keep them as Policy('O2', 'bfloat16', masters='kahan'",
        "slots='bfloat16'": "would not update and keep them as Policy('O2', 'bfloat16', slots=",
    }
    for setting, expected in words.items():
        name, _, value = setting.partition("=")
        model, _ = decorated("bfloat16", OPTIMIZERS["AdamW"], **{name: value.strip("'")})
        other = optim.SGD(model.parameters(), 0.1)
        with pytest.raises(amp.CallOrderError, match=re.escape(expected)):
            train(model, other, batches(1))
        amp.undecorate(model)


def test_slots_of_all_parameters_together_are_refused() -> None:
    model = Net()
    optimizer = optim.LBFGS(model.parameters())
    with pytest.raises(amp.UnsupportedError, match=r"(?s)LBFGS keeps .*Hint: slots='float32'"):
        amp.decorate(model, optimizer, policy("bfloat16", slots="bfloat16"))
    assert model.inner.weight.dtype is torch.float32


CHOICES_OF_CASTS: list[Any] = [
    {"masters": "float32"},
    {"masters": "kahan"},
    {"masters": "stochastic"},
    {"masters": None, "slots": "bfloat16"},
    {"masters": None},
]


@pytest.mark.parametrize("masters", ["float32", "kahan"])
def test_a_model_that_was_cast_to_float32_keeps_its_masters(masters: str) -> None:
    model, optimizer = decorated("bfloat16", OPTIMIZERS["AdamW"], masters=masters)
    train(model, optimizer, batches(3))
    with amp.undecorated(model):
        expected = [p.detach().clone() for p in model.parameters()]
    model.float()
    assert_same_bits(float32_weights(model, optimizer), expected)


@pytest.mark.parametrize("choice", CHOICES_OF_CASTS, ids=str)
def test_a_model_that_was_cast_to_float32_is_told_of_once(choice: Any) -> None:
    model, optimizer = decorated("bfloat16", OPTIMIZERS["AdamW"], **choice)
    train(model, optimizer, batches(1))
    model.float()
    words = (
        r"'inner.weight' is in torch.float32, and was in torch.bfloat16 .* take 4 bytes each now"
        + {None: ", and no update is rounded", "float32": " beside their masters"}.get(
            choice["masters"], ""
        )
        + r"\.\nHint: amp.decorate\(model, optimizer, policy\)"
    )
    with pytest.warns(amp.AmpBridgeWarning, match=words):
        train(model, optimizer, batches(1))
    train(model, optimizer, batches(1))


@pytest.mark.parametrize("cast", ["bfloat16", "half"])
@pytest.mark.parametrize("choice", CHOICES_OF_CASTS, ids=str)
def test_a_model_that_was_cast_is_decorated_again_and_told_what_norms_have_lost(
    choice: Any, cast: str
) -> None:
    """It is the policy that has the others in 16 bits, and norms are float32 again."""
    model, optimizer = decorated("bfloat16", OPTIMIZERS["AdamW"], **choice)
    getattr(model, cast)()
    with pytest.warns(amp.AmpBridgeWarning) as told:
        amp.decorate(model, optimizer, amp.Policy("O2", "bfloat16", **choice))
    (warned,) = told
    assert re.match(r"'norm.weight' is in .* further digits are gone", str(warned.message))
    assert model.norm.weight.dtype is torch.float32
    assert model.inner.weight.dtype is torch.bfloat16


def test_without_masters_float32_moments_of_a_state_are_told_of() -> None:
    """Torch casts them to the dtype of their parameters."""
    (model, optimizer), (_other, its_optimizer) = (
        decorated("bfloat16", OPTIMIZERS["AdamW"], masters=masters)
        for masters in ("stochastic", None)
    )
    train(model, optimizer, batches(2))
    state = optimizer.state_dict()
    with pytest.warns(amp.AmpBridgeWarning, match="slots are float32. masters=None rounds"):
        its_optimizer.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        its_optimizer.load_state_dict(its_optimizer.state_dict())


@pytest.mark.parametrize("name", ["AdamW", "SGD momentum"])
def test_without_masters_the_slots_of_what_was_cast_to_float32_are_so_too(name: str) -> None:
    """Torch's AdamW takes no others. The weights move on as float32 ones, from the gradients of O2."""
    (model, optimizer), (again, its_optimizer) = (
        decorated("bfloat16", OPTIMIZERS[name], masters=None) for _ in range(2)
    )
    for each in ((model, optimizer), (again, its_optimizer)):
        train(*each, batches(1))
    model.float()
    loss_fn(model, *next(batches(1))).backward()
    with pytest.warns(amp.AmpBridgeWarning, match="no update is rounded"):
        optimizer.step()
    alone = [nn.Parameter(p.detach().float()) for p in again.parameters()]
    native = OPTIMIZERS[name](alone)
    for parameter, low, cast in zip(alone, again.parameters(), model.parameters(), strict=True):
        native.state[parameter] = {
            key: slot.float() if isinstance(slot, Tensor) else slot
            for key, slot in its_optimizer.state[low].items()
        }
        parameter.grad = cast.grad
    native.step()
    assert_same_bits(list(model.parameters()), alone)
    assert {slot.dtype for slots in optimizer.state.values() for slot in slots.values()} == {
        torch.float32
    }
    amp.undecorate(model, optimizer)
    assert_same_bits(list(model.parameters()), alone)


@pytest.mark.parametrize("way", ["another group", "another optimizer", "a copy's group"])
def test_layers_that_come_into_a_model_at_o2_are_told_of_once_and_cast_if_it_is_decorated_again(
    way: str,
) -> None:
    """Not those that would not be cast, nor what is outside of the model."""
    make, chosen = OPTIMIZERS["AdamW"], policy("bfloat16", keep=["kept"])
    model = nn.Sequential(OrderedDict(net=Net(), kept=nn.Linear(3, 3)))
    optimizer = make(model.parameters())
    step = amp.train_step(loss_fn, model, optimizer, policy=chosen)
    step(*next(batches(1)))
    if way == "a copy's group":
        step = copy.deepcopy(step)
        step(*next(batches(1)))
        model, optimizer = step.model, step.optimizer
    norm, outside = nn.LayerNorm(3), nn.Linear(3, 3)
    model.append(norm)
    for each in (norm, outside):
        optimizer.add_param_group({"params": each.parameters()})
    step(*next(batches(1)))
    model.append(nn.Linear(3, 3))
    model.append(nn.LayerNorm(3))
    if way != "another optimizer":
        optimizer.add_param_group({"params": model[3:].parameters()})
    else:
        optimizer = make(model.parameters())
        step = amp.train_step(loss_fn, model, optimizer, policy=chosen)
    words = r"came into the model while it was at O2, .*: 3.weight, 3.bias\.\nHint: amp.decorate"
    with pytest.warns(amp.AmpBridgeWarning, match=words):
        step(*next(batches(1)))
    step(*next(batches(1)))
    assert model[3].weight.dtype is torch.float32
    amp.decorate(model, optimizer, chosen)
    step(*next(batches(1)))
    assert model[3].weight.dtype is torch.bfloat16
    assert {p.dtype for i in (1, 2, 4) for p in model[i].parameters()} == {torch.float32}


@pytest.mark.parametrize("masters", ["float32", "stochastic", None])
@pytest.mark.parametrize("cast, named", [("float16", "inner.weight"), ("bfloat16", "norm.weight")])
def test_a_model_that_was_cast_to_other_16_bits_is_refused(
    cast: str, named: str, masters: Any
) -> None:
    model, optimizer = decorated("bfloat16", OPTIMIZERS["AdamW"], masters=masters)
    loss_fn(model, *next(batches(1))).backward()
    model.to(getattr(torch, cast))
    words = rf"'{named}' is in torch.{cast}, and was in .* decorated.*\nHint: amp.undecorate\("
    with pytest.raises(amp.CallOrderError, match=words):
        optimizer.step()
    with pytest.warns(amp.AmpBridgeWarning, match=r"'norm.weight' .* further digits are gone"):
        amp.undecorate(model, optimizer)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("masters", ["float32", None])
def test_a_call_that_fails_as_its_model_was_cast_says_so(masters: Any) -> None:
    """Torch's own batch normalization takes float32 parameters alone beside float32 values."""
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.BatchNorm1d(8))
    amp.decorate(model, None, policy("bfloat16", masters=masters))
    with pytest.raises(RuntimeError, match=r"size mismatch|cannot be multiplied"):
        model(torch.ones(5, 7))
    words = r"'1.weight' is in torch.bfloat16, and was in torch.float32 when .*\nHint: amp.undec"
    with pytest.raises(amp.CallOrderError, match=words):
        model.bfloat16()(torch.ones(5, 6))


def test_a_model_may_be_cast_once_it_is_undecorated() -> None:
    """What stayed float32 at O2 is 16-bit then by the user's own doing, of which a warning comes."""
    model, optimizer = decorated("bfloat16", OPTIMIZERS["SGD momentum"])
    amp.undecorate(model, optimizer)
    for parameter in model.bfloat16().parameters():
        parameter.grad = torch.ones_like(parameter)
    with pytest.warns(amp.AmpBridgeWarning, match=r"in 16 bits by themselves: inner\.weight"):
        amp.decorate(model, optimizer, policy("bfloat16"))
    before = model.norm.weight.clone()
    optimizer.step()
    assert not torch.equal(model.norm.weight, before)


@pytest.mark.parametrize("choice", [{}, {"masters": "kahan"}], ids=str)
def test_a_capturable_optimizer_on_a_cpu_is_refused_before_anything_moves(choice: Any) -> None:
    model, optimizer = decorated(
        "bfloat16", lambda p: optim.Adam(p, 0.1, capturable=True), **choice
    )
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(
        amp.UnsupportedError, match=r"capturable=True.* CPU.\nHint: capturable=False"
    ):
        train(model, optimizer, batches(1))
    assert_same_bits(list(model.parameters()), before)
    optimizer.param_groups[0]["capturable"] = False
    train(model, optimizer, batches(1))


@pytest.mark.parametrize("choice", [{"masters": "kahan"}, {"slots": "bfloat16"}], ids=str)
def test_a_cuda_graph_of_an_update_that_widens_is_refused(
    choice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = decorated("bfloat16", OPTIMIZERS["AdamW"], **choice)
    train(model, optimizer, batches(1))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    for name in ("is_initialized", "is_current_stream_capturing"):
        monkeypatch.setattr(torch.cuda, name, lambda: True)
    with pytest.raises(amp.UnsupportedError, match="A CUDA graph cannot hold this update by AdamW"):
        train(model, optimizer, batches(1))
    amp.decorate(model, optimizer, policy("bfloat16"))
    train(model, optimizer, batches(1))


def test_momentum_of_sparse_gradients_is_sparse_and_stays_float32() -> None:
    """What is said of it is that nothing is low."""
    torch.manual_seed(0)
    model, x = nn.Embedding(20, 4, sparse=True), torch.tensor([1, 2, 2])
    expected = copy.deepcopy(model)
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9)
    amp.decorate(model, optimizer, policy("bfloat16", masters="kahan", slots="bfloat16"))
    by_hand = optim.SGD(expected.parameters(), 0.1, momentum=0.9)

    def take_steps() -> None:
        for each, its_optimizer in ((model, optimizer), (expected, by_hand)) * 3:
            its_optimizer.zero_grad()
            each(x).float().sum().backward()
            its_optimizer.step()

    with pytest.warns(amp.AmpBridgeWarning, match="of SGD, which keeps no moments"):
        take_steps()
    (slots,) = optimizer.state.values()
    assert slots["momentum_buffer"].dtype is torch.float32
    assert_same_bits(float32_weights(model, optimizer), [expected.weight.detach()])


@pytest.mark.parametrize("saved, says", [(SLOTS[0], True), (SLOTS[1], False)])
def test_a_state_that_is_loaded_by_hand_is_rounded_with_a_warning(
    saved: str, says: bool, recwarn: pytest.WarningsRecorder
) -> None:
    make = OPTIMIZERS["AdamW"]
    model, optimizer = decorated("bfloat16", make, masters="kahan", slots=saved)
    train(model, optimizer, batches(3))
    weights, state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    for is_decorated in (True, False):
        other = Net()
        its_optimizer = make(other.parameters())
        chosen = policy("bfloat16", masters="kahan", slots="bfloat16")
        if is_decorated:
            amp.decorate(other, its_optimizer, chosen)
        other.load_state_dict(weights)
        its_optimizer.load_state_dict(copy.deepcopy(state))
        amp.decorate(other, its_optimizer, chosen)
        told = [str(each.message) for each in recwarn.list]
        assert len(told) == says
        assert all(text.startswith("The optimizer's slots are float32. slots=") for text in told)
        recwarn.clear()
        kept = low_slots(its_optimizer)
        assert_same_bits(kept, [slot.bfloat16() for slot in low_slots(optimizer)])
