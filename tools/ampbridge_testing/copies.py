"""Promises of copies and pickles, and of what is freed with a step that nobody holds."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Iterator
from itertools import islice, product
from typing import Any

import pytest

from ampbridge import CallOrderError, GradScaler, Policy, StepResult, UnsupportedError, autocast
from ampbridge.policies.policy import POLICIES_REMEMBERED
from ampbridge_testing.decorating import Layered
from ampbridge_testing.gradients import same_bits

policies = pytest.mark.parametrize("policy", ["O0", "O1:float16", "O2:bfloat16"])


class CopyConformance(Layered):
    """A copy of a step trains its own weights, and a step that is dropped leaves nothing behind."""

    @policies
    @pytest.mark.parametrize("accumulate", [1, 3])
    def test_a_copy_of_a_step_goes_on_by_itself(self, policy: str, accumulate: int) -> None:
        h = self.harness
        model, optimizer = self.trainable("adam")
        settings: dict[str, Any] = {"accumulate": accumulate, "compile": False}
        scaler = GradScaler(2.0**6, growth_interval=2)
        step = self.step(model, optimizer, policy=policy, scaler=scaler, **settings)
        for _ in range(4):  # with three micro-batches, to the first of the second step
            step(*self.batch())
        if not h.copies:
            with pytest.raises(UnsupportedError, match=r"Hint: step\.save\(path\)"):
                copy.deepcopy(step)
            return
        before = self.values(model)
        copied = copy.deepcopy(step)
        theirs = [copied(*self.batch()) for _ in range(4)]
        assert same_bits(self.values(model), before)
        ours = [step(*self.batch()) for _ in range(4)]
        assert list(map(repr, theirs)) == list(map(repr, ours))
        assert same_bits(self.values(copied.model), self.values(model))
        if accumulate == 1:
            assert copied.state_dict() == step.state_dict()
        assert not same_bits(self.values(model), before)

    @policies
    def test_a_dropped_step_is_freed_at_once(self, policy: str) -> None:
        """And its model, if it is when nobody ever decorated it: Keras' is a cycle."""
        gc.collect()
        gc.disable()
        try:
            model, _ = self.trainable("adam")
            untouched = weakref.ref(model)
            del model, _
            model, optimizer = self.trainable("adam")
            step = self.step(model, optimizer, policy=policy, compile=False)
            for _ in range(2):
                step(*self.batch())
            dropped = weakref.ref(step), weakref.ref(model)
            del step, model, optimizer, _
            assert dropped[0]() is None
            assert dropped[1]() is None or untouched() is not None
        finally:
            gc.enable()

    def test_a_result_is_pickled(self) -> None:
        settings: dict[str, Any] = {"clip_norm": 1.0, "name_overflows": True, "compile": False}
        step = self.step(*self.trainable(), policy="O1:float16", accumulate=2, **settings)
        for factor in (1.0, 1.0, 1.0, float("inf")):
            result = step(*self.batch(factor))
            pickled = pickle.dumps(result)
            assert self.harness.backend.name.encode() not in pickled  # nothing but Python's numbers
            found = pickle.loads(pickled)
            assert all(_field(found, name) == _field(result, name) for name in FIELDS)

    def test_a_scaler_is_copied_between_iterations(self) -> None:
        h, scaler = self.harness, GradScaler(2.0**6, growth_interval=2)
        model, optimizer = self.trainable()
        step = self.step(model, optimizer, policy="O1:float16", scaler=scaler, compile=False)
        step(*self.batch())
        for copied in (copy.deepcopy(scaler), pickle.loads(pickle.dumps(scaler))):
            assert copied.state_dict() == scaler.state_dict()
            copied.update(2.0)
        assert scaler.get_scale() == 2.0**6
        if h.stores_gradients:
            batch = [h.array(value) for value in self.batch()]
            h.native_gradients(model, self.loss(), batch, scaler.scale)
            scaler.unscale(optimizer)
            with pytest.raises(CallOrderError, match=r"Hint: scaler\.update\(\)"):
                copy.deepcopy(scaler)

    def test_what_is_compiled_of_policies_is_bounded(self) -> None:
        """Of policies that nobody holds any more only so many are remembered."""
        seen = weakref.WeakSet[Policy]()
        for policy in islice(_distinct_policies(), POLICIES_REMEMBERED + 40):
            seen.add(policy)
            with autocast(policy, self.harness.backend.name):
                pass
        del policy
        gc.collect()
        assert 0 < len(seen) <= POLICIES_REMEMBERED


FIELDS = "loss", "step", "scale", "applied", "grad_norm", "reason", "consecutive_skips", "overflows"


def _distinct_policies() -> Iterator[Policy]:
    """By what they say of ops that every framework has."""
    rules = product(("allow", "deny", ""), repeat=4)
    for dtype, lists, chosen in product(("float16", "bfloat16"), ("torch", "safe"), rules):
        listed = list(zip(("matmul", "exp", "add", "atan2"), chosen, strict=True))
        allow, deny = (tuple(op for op, c in listed if c == kind) for kind in ("allow", "deny"))
        yield Policy("O1", dtype, lists=lists, allow=allow, deny=deny)


def _field(result: StepResult, name: str) -> Any:
    try:
        return repr(getattr(result, name))  # of NaN, too
    except CallOrderError as error:
        return str(error)
