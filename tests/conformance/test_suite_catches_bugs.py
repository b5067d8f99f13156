"""The suite is itself tested: it must fail each of these broken backends, by the test that is for it.

Each breaks one promise of the NumPy adapter, which keeps them all. PyTorch's, which differ where a
framework has tensors of its own, stand in ``tests/torch/test_suite_catches_bugs.py``.
"""

import inspect
import threading
import warnings
from contextlib import contextmanager, nullcontext, suppress
from contextvars import Context, copy_context
from functools import lru_cache
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from broken_backends import BrokenBackends

from ampbridge import (
    AmpBridgeWarning,
    ArgumentError,
    CallOrderError,
    GradScaler,
    Policy,
    Recipe,
    StateError,
    UnsupportedError,
    decorate,
    train_step,
)
from ampbridge.adapters import registry
from ampbridge.adapters.backend import FINITE, INF, NAN, Decoration
from ampbridge.adapters.nested import leaves, map_leaves
from ampbridge.adapters.observation import OpCall
from ampbridge.adapters.roles.saving import OptimizerState
from ampbridge.adapters.scoped import Scoped
from ampbridge.policies import op_table
from ampbridge.scaling.scale_rule import HostStore, ScalerConfig, ScaleState
from ampbridge_numpy import nn, training_state
from ampbridge_numpy.autocast import casting
from ampbridge_numpy.autocast.casting import anp
from ampbridge_numpy.backend import NumpyBackend
from ampbridge_numpy.lens.observing import Watch
from ampbridge_numpy.model import low_arrays
from ampbridge_numpy.model.decorating import ModelCall
from ampbridge_numpy.step import gradients
from ampbridge_numpy.testing import NumpyHarness
from ampbridge_testing import BackendConformance, growth, names_of_tests, options, outcomes, scaler
from ampbridge_testing.shared import RATE

SABOTAGE = BrokenBackends()
caught_by = SABOTAGE.caught_by


# -- cast and the region


@caught_by("test_cast_leaves_float64_and_integers_alone")
class CastsIntegers(NumpyBackend):
    def cast(self, x, dtype):
        return (
            np.asarray(x).astype(np.float32)
            if np.asarray(x).dtype.kind == "i"
            else super().cast(x, dtype)
        )


@caught_by("test_cast_leaves_float64_and_integers_alone")
class CastsFloat64(NumpyBackend):
    def cast(self, x, dtype):
        return super().cast(np.float32(x) if x.dtype == np.float64 else x, dtype)


@caught_by("test_cast_changes_the_dtype_and_keeps_exact_values", "test_cast_rounds_to_nearest_even")
class CastDoesNothing(NumpyBackend):
    def cast(self, x, dtype):
        return x


@caught_by("test_cast_rounds_to_nearest_even")
class CastTruncates(NumpyBackend):
    """As Paddle's did up to 3.0."""

    def cast(self, x, dtype):
        dropped_bits = {"float16": 13, "bfloat16": 16}.get(dtype, 0)
        kept = np.float32(x).view(np.uint32) >> dropped_bits << dropped_bits
        return super().cast(kept.view(np.float32) if x.dtype == np.float32 else x, dtype)


@caught_by("test_scale_takes_a_low_loss_to_float32_first", "test_cast_back_to_float32")
class CastNeverWidens(NumpyBackend):
    def cast(self, x, dtype):
        return x if dtype == "float32" else super().cast(x, dtype)


@caught_by(
    "test_an_allowed_op_runs_in_the_low_dtype",
    "test_a_custom_allow_is_honoured",
    "test_O1_inside_O0_casts",
    "test_O1_gradients_show_the_low_dtype",
    "test_the_loss_function_runs_under_the_policy",
    "test_an_allowed_op_returns_the_low_dtype",
    "test_value_and_grad_follows_the_policy",
)
class CastsNothing(NumpyBackend):
    def autocast(self, policy):
        return super().autocast(Policy("O0"))

    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        return super().gradients(loss_fn, model, batch, Policy("O0"), factor, total, optimizer)


@caught_by("test_a_denied_op_runs_in_float32_on_low_inputs")
class CastsADeniedOp(NumpyBackend):
    def autocast(self, policy):
        return super().autocast(policy if policy.level == "O0" else policy.replace(allow=("exp",)))


@caught_by("test_a_custom_deny_is_honoured", "test_two_policies_do_not_share_their_rules")
class IgnoresDeny(NumpyBackend):
    def autocast(self, policy):
        return super().autocast(policy.replace(deny=()))


@caught_by("test_a_custom_allow_is_honoured")
class IgnoresAllow(NumpyBackend):
    def autocast(self, policy):
        return super().autocast(policy.replace(allow=()))


@caught_by(
    "test_an_allowed_function_runs_low_as_a_whole",
    "test_a_denied_function_runs_in_float32_as_a_whole",
    "test_a_function_is_itself_again_afterwards",
    "test_a_function_that_does_not_exist_is_an_error",
)
class IgnoresFunctions(NumpyBackend):
    def autocast(self, policy):
        allow, deny = (
            [op for op in ops if not op_table.is_function(op)]
            for ops in (policy.allow, policy.deny)
        )
        return super().autocast(policy.replace(allow=allow, deny=deny))


@caught_by("test_a_denied_function_runs_in_float32_as_a_whole")
class CastsInsideOfFunctions(NumpyBackend):
    """Its inputs are cast, and then the rules of what it is made of cast them again."""

    @contextmanager
    def autocast(self, policy):
        def as_a_layer(name, function):
            def called(*args, **kwargs):
                with casting.parts_of(name):
                    return function(*args, **kwargs)

            return called if casting.has_rule(name) else None

        with (
            replaced(casting.function_ops, _adapters=[as_a_layer]),
            super().autocast(policy),
            replaced(casting, ALL_FLOAT32=casting._interception.active.get()),
        ):
            yield


@caught_by("test_a_rule_that_cannot_act_is_said")
class SaysNothingOfRulesThatCannotAct(NumpyBackend):
    @contextmanager
    def autocast(self, policy):
        with (
            replaced(casting, warn_of_rules_without_effect=lambda *_: None),
            super().autocast(policy),
        ):
            yield


@caught_by("test_a_promoting_op_takes_the_widest_input")
class PromotesToTheNarrowest(NumpyBackend):
    def autocast(self, policy):
        return super().autocast(
            policy if policy.level == "O0" else policy.replace(allow=("atan2",))
        )


@caught_by("test_an_unlisted_op_follows_low_inputs")
class KeepsUnlistedOpsInFloat32(NumpyBackend):
    def autocast(self, policy):
        return super().autocast(policy if policy.level == "O0" else policy.replace(deny=("add",)))


@caught_by("test_an_unlisted_op_of_mixed_inputs_takes_the_widest")
class CastsUnlistedOps(NumpyBackend):
    def autocast(self, policy):
        return super().autocast(policy if policy.level == "O0" else policy.replace(allow=("add",)))


@caught_by(
    "test_an_allowed_op_runs_in_the_low_dtype", "test_of_nested_regions_the_inner_one_counts"
)
class TakesFloat16ForBfloat16(NumpyBackend):
    def autocast(self, policy):
        return super().autocast(policy if policy.level == "O0" else policy.replace(dtype="float16"))


@caught_by("test_O0_casts_nothing", "test_O0_inside_O1_is_full_float32")
class O0Casts(NumpyBackend):
    def autocast(self, policy):
        return super().autocast(Policy("O1") if policy.level == "O0" else policy)


@caught_by("test_O0_inside_O1_is_full_float32", "test_O0_inside_O1_takes_low_arrays_to_float32")
class O0OpensNoRegion(NumpyBackend):
    @contextmanager
    def autocast(self, policy):
        if policy.level == "O0":
            yield
        else:
            with super().autocast(policy):
                yield


@caught_by("test_O0_inside_O1_takes_low_arrays_to_float32")
class O0LeavesLowArraysLow(NumpyBackend):
    @contextmanager
    def autocast(self, policy):
        if policy.level == "O0":
            with casting._interception.paused():
                yield
        else:
            with super().autocast(policy):
                yield


@caught_by(
    "test_an_exception_leaves_the_region",
    "test_an_exception_leaves_the_outer_region_intact",
)
class LeaksTheRegionAfterAnException(NumpyBackend):
    @contextmanager
    def autocast(self, policy):
        token = enter(policy)
        yield
        leave(token)


@caught_by(
    "test_nothing_is_cast_outside_of_regions",
    "test_a_region_may_be_entered_again_within_itself",
    "test_a_region_decorates_a_function",
    "test_a_region_decorates_a_generator",
    "test_a_region_decorates_coroutines_that_take_turns",
    "test_a_region_decorates_an_asynchronous_generator",
)
class NeverLeavesTheRegion(NumpyBackend):
    @contextmanager
    def autocast(self, policy):
        enter(policy)
        yield


@caught_by("test_a_region_may_be_entered_again", "test_a_region_decorates_a_function")
class GivesTheSameRegionTwice(NumpyBackend):
    """A context manager that serves once, as those of generators do."""

    def __init__(self):
        self.autocast = lru_cache(super().autocast)


@caught_by("test_the_framework_is_left_as_it_was")
class LeavesTheFrameworkPatched(NumpyBackend):
    @contextmanager
    def autocast(self, policy):
        enter(policy)
        try:
            yield
        finally:
            leave_open(casting._interception.paused())


left_open = []


def leave_open(context):
    """Enter ``context`` for good."""
    context.__enter__()
    left_open.append(context)


def enter(policy):
    """A region that stays open until ``leave``, whatever happens."""
    region = casting._interception.region(casting.rules_of(policy))
    leave_open(region)
    return region


def leave(region):
    left_open.remove(region)
    region.__exit__()


@caught_by("test_of_nested_regions_the_inner_one_counts")
class OuterRegionWins(NumpyBackend):
    @contextmanager
    def autocast(self, policy):
        with (
            super().autocast(policy)
            if casting._interception.active.get() is None
            else nullcontext()
        ):
            yield


@caught_by("test_an_inner_region_does_not_inherit_the_outer_lists")
class InheritsTheOuterLists(NumpyBackend):
    """As torch function modes do when they are stacked without care."""

    outer: ClassVar = []

    @contextmanager
    def autocast(self, policy):
        if self.outer and policy.level == self.outer[-1].level == "O1":
            policy = policy.replace(allow=self.outer[-1].allow, deny=self.outer[-1].deny)
        self.outer.append(policy)
        try:
            with super().autocast(policy):
                yield
        finally:
            self.outer.pop()


@caught_by("test_of_nested_regions_the_inner_one_counts")
class LeavingTheInnerRegionLeavesTheOuter(NumpyBackend):
    @contextmanager
    def autocast(self, policy):
        with super().autocast(policy):
            yield
        leave_open(casting._interception.paused())


@caught_by(
    "test_other_threads_do_not_see_the_region",
    "test_a_region_of_another_thread_is_not_seen",
    "test_eight_threads_each_follow_their_own_policy",
    "test_a_region_may_be_entered_by_two_threads_at_once",
)
class LeaksTheRegionToOtherThreads(NumpyBackend):
    """The active policy in a global variable."""

    def __init__(self):
        casting._interception.active = GlobalVariable()


class GlobalVariable(Scoped):
    def __init__(self):
        super().__init__("global", None)
        self.entered = SimpleNamespace(get=lambda: self._now, set=self._set)
        self._now = None

    def _set(self, entered):
        self._now = entered


@caught_by("test_an_O2_region_casts_as_an_O1_region_does")
class O2CastsEverything(NumpyBackend):
    def autocast(self, policy):
        return super().autocast(policy.replace(allow=("exp",)) if policy.level == "O2" else policy)


@caught_by("test_float64_stays_float64")
class RegionCastsFloat64(NumpyBackend):
    @contextmanager
    def autocast(self, policy):
        with super().autocast(policy), replaced(anp, matmul=in_float32(anp.matmul)):
            yield


@caught_by("test_integers_stay_integers")
class RegionCastsIntegers(NumpyBackend):
    @contextmanager
    def autocast(self, policy):
        with super().autocast(policy), replaced(anp, add=in_float32(anp.add)):
            yield


@caught_by("test_the_operands_keep_their_dtype")
class RoundsOperandsInPlace(NumpyBackend):
    @contextmanager
    def autocast(self, policy):
        def rounding(left, right):
            right[...] = right.astype(policy.dtype)
            return np.matmul(left, right)

        with super().autocast(policy), replaced(anp, matmul=rounding):
            yield


def in_float32(function):
    return lambda *inputs: function(*(x.astype(np.float32) for x in inputs))


@contextmanager
def replaced(owner, **attributes):
    kept = {name: getattr(owner, name) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in kept.items():
            setattr(owner, name, value)


@caught_by(
    "test_two_policies_do_not_share_their_rules",
    "test_two_steps_of_one_loss_function_follow_their_own_policies",
    "test_a_schedule_changes_what_runs_at_the_right_step",
)
class FollowsItsFirstPolicyForEver(NumpyBackend):
    """As a program does that was compiled once."""

    first = None

    def autocast(self, policy):
        self.first = self.first or policy
        return super().autocast(self.first)

    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        self.first = self.first or policy
        return super().gradients(loss_fn, model, batch, self.first, factor, total, optimizer)


# -- gradients


class ChangesGradients(NumpyBackend):
    """Shares the plumbing of what follows: ``changed`` sees every argument and result."""

    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        loss, aux, grads = super().gradients(
            loss_fn, model, batch, policy, factor, total, optimizer
        )
        return self.changed(loss, aux, grads, factor, total)


@caught_by("test_steps_within_a_region_are_those_outside_of_it")
class FollowsTheRegionAround(NumpyBackend):
    """The backward pass casts as the region does that the loop stands in."""

    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        with replaced(gradients, outside_of_regions=nullcontext):
            return super().gradients(loss_fn, model, batch, policy, factor, total, optimizer)


@caught_by("test_a_loss_that_depends_on_no_parameter_is_an_error")
class TrainsNothing(NumpyBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        try:
            return super().gradients(loss_fn, model, batch, policy, factor, total, optimizer)
        except ArgumentError:
            return np.float32(0), None, [None] * len(self.parameters(optimizer or model))


@caught_by("test_the_total_is_added_to", "test_accumulated_micro_batches_equal_the_big_batch")
class IgnoresTheTotal(NumpyBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        return super().gradients(loss_fn, model, batch, policy, factor, None, optimizer)


@caught_by("test_the_total_is_added_to", "test_an_overflow_in_any_micro_batch_skips_the_step")
class ReturnsTheTotalAlone(ChangesGradients):
    def changed(self, loss, aux, grads, factor, total):
        return loss, aux, grads if total is None else total


@caught_by(
    "test_a_step_after_a_skipped_one_trains_on",
    "test_an_overflow_does_not_reach_the_next_accumulation",
)
class NeverClearsTheTotal(ChangesGradients):
    """As parameters do whose gradients nobody sets to zero."""

    kept = None

    def changed(self, loss, aux, grads, factor, total):
        if self.kept is not None and total is None:
            with np.errstate(invalid="ignore"):
                grads = [g + k for g, k in zip(grads, self.kept, strict=True)]
        self.kept = grads
        return loss, aux, grads


@caught_by("test_what_is_reset_leaves_no_gradients")
class KeepsTheTotalUntilTheStep(NumpyBackend):
    """As parameters do whose gradients are set to zero by the optimizer's step alone."""

    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        loss, aux, grads = super().gradients(
            loss_fn, model, batch, policy, factor, total, optimizer
        )
        if optimizer is not None:
            kept = getattr(optimizer, "kept", None)
            optimizer.kept = grads = self.add(kept, grads) if kept and total is None else grads
        return loss, aux, grads

    def step(self, optimizer, parameters, grads):
        optimizer.kept = None
        super().step(optimizer, parameters, grads)


@caught_by("test_the_factor_does_not_multiply_the_total")
class MultipliesTheTotal(NumpyBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        scaled = None if total is None else [t if t is None else t * (factor or 1.0) for t in total]
        return super().gradients(loss_fn, model, batch, policy, factor, scaled, optimizer)


@caught_by(
    "test_the_factor_multiplies_the_gradients",
    "test_value_and_grad_gives_the_unscaled_loss_and_scaled_gradients",
    "test_scaling_does_not_change_the_step",
    "test_no_argument_of_value_and_grad_is_ignored",
)
class IgnoresTheFactor(NumpyBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        return super().gradients(loss_fn, model, batch, policy, None, total, optimizer)


@caught_by(
    "test_the_loss_comes_without_the_factor",
    "test_value_and_grad_gives_the_unscaled_loss_and_scaled_gradients",
)
class ReturnsTheLossScaled(ChangesGradients):
    def changed(self, loss, aux, grads, factor, total):
        return loss if factor is None else np.float32(loss * factor), aux, grads


@caught_by("test_the_loss_is_a_detached_float32_scalar")
class ReturnsTheLossInItsOwnDtype(ChangesGradients):
    def changed(self, loss, aux, grads, factor, total):
        return np.float16(loss), aux, grads


@caught_by(
    "test_aux_passes_through",
    "test_aux_passes_through_untouched",
    "test_value_and_grad_returns_aux_beside_the_loss",
)
class LosesAux(ChangesGradients):
    def changed(self, loss, aux, grads, factor, total):
        return loss, None, grads


@caught_by("test_aux_is_cut_off_from_the_computation")
class ReturnsAuxAsItWasComputed(NumpyBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        made = []

        def noting(*arguments):
            made.append(loss_fn(*arguments))
            return made[-1]

        loss, _, grads = super().gradients(noting, model, batch, policy, factor, total, optimizer)
        return loss, made[0][1], grads


@caught_by(
    "test_parameters_outside_of_the_model_are_trained",
    "test_they_are_accumulated_and_clipped_with_the_others",
    "test_at_O2_they_stay_float32_and_are_trained",
    "test_their_overflow_skips_the_step_and_is_named",
)
class TrainsTheModelAlone(NumpyBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        loss, aux, grads = super().gradients(
            loss_fn, model, batch, policy, factor, total, optimizer
        )
        own = set(map(id, self.parameters(model)))
        trained = self.parameters(model if optimizer is None else optimizer)
        pairs = zip(grads, trained, strict=True)
        return loss, aux, [g if id(p) in own else None for g, p in pairs]


@caught_by(
    "test_a_checkpoint_holds_them",
    "test_a_checkpoint_with_others_is_refused",
    "test_of_a_checkpoint_that_is_adopted_they_are_told_as_not_used",
)
class HoldsTheModelAlone(NumpyBackend):
    """Says that the optimizer has no others."""

    def parameters(self, owner):
        return super().parameters(owner)[:4]


@caught_by("test_arrays_in_containers_are_those_of_the_framework")
class ConvertsNoContainers(NumpyBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        class Hidden:
            def __init__(self, value):
                self.value = value

        def hidden(values):
            return [x if isinstance(x, np.ndarray) else Hidden(x) for x in values]

        def shown(values):
            return [x.value if isinstance(x, Hidden) else x for x in values]

        if len(batch) != 2 or not isinstance(batch[1], dict):
            return super().gradients(loss_fn, model, batch, policy, factor, total, optimizer)
        flat = (hidden(batch[0]), dict(zip(batch[1], hidden(batch[1].values()), strict=True)))
        return super().gradients(
            lambda model, positional, named: loss_fn(
                model, shown(positional), dict(zip(named, shown(named.values()), strict=True))
            ),
            model,
            flat,
            policy,
            factor,
            total,
            optimizer,
        )


@caught_by(
    "test_keywords_reach_the_loss",
    "test_a_batch_of_keywords_alone",
    "test_value_and_grad_takes_keywords",
)
class LosesKeywords(NumpyBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        if len(batch) == 2 and isinstance(batch[1], dict):
            batch = (batch[0], {})
        return super().gradients(loss_fn, model, batch, policy, factor, total, optimizer)


@caught_by("test_a_step_takes_containers", "test_arrays_in_containers_are_those_of_the_framework")
class MakesListsOfContainers(NumpyBackend):
    """As a walk that knows no classes."""

    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        if len(batch) == 2 and isinstance(batch[1], dict):
            flat = [x if isinstance(x, np.ndarray) else leaves(x) for x in batch[0]]
            batch = (flat, batch[1])
        return super().gradients(loss_fn, model, batch, policy, factor, total, optimizer)


@caught_by("test_what_is_no_optimizer_is_refused")
class TakesAnythingForAnOptimizer(NumpyBackend):
    def kind(self, obj):
        return super().kind(obj) or "optimizer"


@caught_by("test_arguments_in_another_order_are_refused")
class TellsModelsAndOptimizersNotApart(NumpyBackend):
    def kind(self, obj):
        return "model" if super().kind(obj) == "optimizer" else super().kind(obj)


@caught_by("test_a_region_decorates_only_functions")
class KnowsNoModel(NumpyBackend):
    def kind(self, obj):
        found = super().kind(obj)
        return None if found == "model" else found


@caught_by("test_a_model_as_the_loss_is_refused")
class KnowsOneModel(NumpyBackend):
    known = None

    def kind(self, obj):
        found = super().kind(obj)
        self.known = self.known or (obj if found == "model" else None)
        return None if found == "model" and obj is not self.known else found


@caught_by("test_an_optimizer_of_another_model_is_refused")
class KnowsNotWhatAnOptimizerHolds(NumpyBackend):
    def parameters(self, owner):
        if self.kind(owner) == "optimizer":
            raise CallOrderError("It has not been told.")
        return super().parameters(owner)


@caught_by("test_a_parameter_that_the_loss_does_not_use_has_no_gradient")
class GivesZerosForUnusedParameters(NumpyBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        loss, aux, grads = super().gradients(
            loss_fn, model, batch, policy, factor, total, optimizer
        )
        pairs = zip(grads, self.parameters(model), strict=True)
        return loss, aux, [np.zeros_like(p) if g is None else g for g, p in pairs]


@caught_by("test_gradients_are_float32_like_their_parameters")
class GivesLowGradients(ChangesGradients):
    def changed(self, loss, aux, grads, factor, total):
        return loss, aux, [g if g is None else g.astype(np.float16) for g in grads]


@caught_by(
    "test_O0_gradients_are_exact", "test_a_step_is_the_optimizer_s_step_from_the_true_gradients"
)
class RoundsGradientsAtO0(ChangesGradients):
    def changed(self, loss, aux, grads, factor, total):
        return (
            loss,
            aux,
            [g if g is None else g.astype(np.float16).astype(np.float32) for g in grads],
        )


@caught_by("test_O1_gradients_are_within_the_low_dtype_s_error")
class AddsUpInLowPrecision(ChangesGradients):
    def changed(self, loss, aux, grads, factor, total):
        return loss, aux, [g if g is None else np.float32(g * 1.1) for g in grads]


@caught_by("test_denied_products_give_exact_gradients", "test_a_denied_product_trains_in_float32")
class DeniesNothingInTraining(NumpyBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        policy = policy.replace(deny=())
        return super().gradients(loss_fn, model, batch, policy, factor, total, optimizer)


@caught_by("test_the_backward_pass_runs_outside_of_the_region")
class BackwardInsideTheRegion(NumpyBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        with replaced(gradients, outside_of_regions=lambda: self.autocast(policy)):
            return super().gradients(loss_fn, model, batch, policy, factor, total, optimizer)


@caught_by("test_an_exception_in_the_loss_function_leaves_the_region")
class LeaksTheRegionOfAFailedLoss(NumpyBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        token = enter(policy)
        result = super().gradients(loss_fn, model, batch, policy, factor, total, optimizer)
        leave(token)
        return result


@caught_by("test_integer_batches_stay_integers")
class CastsTheBatch(NumpyBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        batch = [np.asarray(x, np.float32) for x in batch]
        return super().gradients(loss_fn, model, batch, policy, factor, total, optimizer)


@caught_by("test_the_parameters_are_not_changed")
class RoundsTheParameters(NumpyBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        for parameter in self.parameters(model):
            parameter[...] = parameter.astype(np.float16)
        return super().gradients(loss_fn, model, batch, policy, factor, total, optimizer)


@caught_by(
    "test_parameters_of_a_model_come_in_order",
    "test_a_step_is_the_optimizer_s_step_from_the_true_gradients",
)
class ReversesTheParameters(NumpyBackend):
    def parameters(self, owner):
        return super().parameters(owner)[::-1]


@caught_by("test_parameters_of_an_optimizer_are_those_of_its_model")
class ForgetsParametersOfOptimizers(NumpyBackend):
    def parameters(self, owner):
        parameters = super().parameters(owner)
        return (
            parameters
            if hasattr(owner, "parameters") and callable(owner.parameters)
            else parameters[:2]
        )


@caught_by(
    "test_stored_gradients_are_those_of_the_last_backward_pass",
    "test_unscale_of_an_optimizer_is_refused_where_gradients_are_values",
)
class InventsStoredGradients(NumpyBackend):
    def stored_gradients(self, optimizer):
        return []


# -- unscale


class ChangesFound(NumpyBackend):
    """Shares the plumbing of what follows: ``changed`` sees what the check found."""

    def unscale(self, grads, scale):
        values, found = super().unscale(grads, scale)
        return values, self.changed(found)


@caught_by(
    "test_unscale_reports_what_it_finds_anywhere",
    "test_inf_and_nan_back_off_alike",
    "test_a_skipped_training_step_leaves_every_bit",
)
class IgnoresNan(ChangesFound):
    def changed(self, found):
        return INF if found == INF else FINITE


@caught_by(
    "test_unscale_reports_what_it_finds_anywhere",
    "test_step_skips_what_overflowed",
    "test_a_scale_that_is_too_large_backs_off_until_a_step_is_applied",
    "test_found_inf_tells_what_the_check_found",
)
class IgnoresInf(ChangesFound):
    def changed(self, found):
        return NAN if found == NAN else FINITE


@caught_by("test_unscale_reports_what_it_finds_anywhere", "test_inf_wins_over_nan")
class ReportsInfAsNan(ChangesFound):
    def changed(self, found):
        return NAN if found else FINITE


@caught_by("test_unscale_reports_what_it_finds_anywhere")
class ReportsNanAsInf(ChangesFound):
    def changed(self, found):
        return INF if found else FINITE


@caught_by("test_unscale_finds_finite_gradients_finite", "test_the_loss_falls_under_a_scaler")
class ReportsFiniteAsInf(ChangesFound):
    def changed(self, found):
        return found or INF


@caught_by(
    "test_unscale_reports_what_it_finds_anywhere", "test_unscale_looks_behind_none_gradients"
)
class LooksAtTheFirstGradientAlone(NumpyBackend):
    def unscale(self, grads, scale):
        return super().unscale(grads, scale)[0], super().unscale(grads[:1], scale)[1]


@caught_by("test_unscale_reports_what_it_finds_anywhere")
class LooksAtTheFirstElementsAlone(NumpyBackend):
    def unscale(self, grads, scale):
        first = [g if g is None else g.reshape(-1)[:1] for g in grads]
        return super().unscale(grads, scale)[0], super().unscale(first, scale)[1]


@caught_by("test_inf_wins_over_nan")
class TheLastFindingWins(NumpyBackend):
    def unscale(self, grads, scale):
        found = [super(TheLastFindingWins, self).unscale([g], scale)[1] for g in grads]
        return super().unscale(grads, scale)[0], next((f for f in found[::-1] if f), FINITE)


@caught_by("test_the_worst_of_several_sets_of_gradients")
class TheLastSetWins(NumpyBackend):
    def worst(self, found):
        return found[-1]


@caught_by("test_opposite_infinities_are_inf", "test_large_gradients_are_not_taken_for_inf")
class ChecksTheSum(NumpyBackend):
    """One reduction for all elements: cheap, and wrong."""

    def unscale(self, grads, scale):
        values = super().unscale(grads, scale)[0]
        with np.errstate(over="ignore", invalid="ignore"):
            total = sum((g.astype(np.float32).sum() for g in grads if g is not None), np.float32(0))
        return values, NAN if np.isnan(total) else INF if np.isinf(total) else FINITE


@caught_by(
    "test_unscale_divides_exactly_by_powers_of_two",
    "test_step_after_unscale_does_not_unscale_again",
    "test_scaling_does_not_change_the_step",
)
class UnscalesTwice(NumpyBackend):
    def unscale(self, grads, scale):
        return super().unscale(super().unscale(grads, scale)[0], scale)


@caught_by(
    "test_unscale_divides_exactly_by_powers_of_two",
    "test_unscale_gives_the_true_gradients",
    "test_step_unscales_by_itself",
    "test_clip_norm_clips_the_true_gradients",
    "test_the_native_loop_steps_from_the_true_gradients",
)
class DoesNotUnscale(NumpyBackend):
    def unscale(self, grads, scale):
        return list(grads), super().unscale(grads, scale)[1]


@caught_by("test_unscale_gives_float32_for_low_gradients")
class UnscalesInLowPrecision(NumpyBackend):
    def unscale(self, grads, scale):
        values, found = super().unscale(grads, scale)
        pairs = zip(values, grads, strict=True)
        return [v if v is None else v.astype(g.dtype) for v, g in pairs], found


@caught_by("test_unscale_passes_none_gradients_over")
class DropsNoneGradients(NumpyBackend):
    def unscale(self, grads, scale):
        return super().unscale([g for g in grads if g is not None], scale)


@caught_by("test_unscale_of_no_gradients_is_finite")
class FindsNanInNothing(NumpyBackend):
    def unscale(self, grads, scale):
        values, found = super().unscale(grads, scale)
        return values, found if any(g is not None for g in grads) else NAN


@caught_by("test_unscale_keeps_the_shapes")
class FlattensGradients(NumpyBackend):
    def unscale(self, grads, scale):
        values, found = super().unscale(grads, scale)
        return [v if v is None else v.reshape(-1) for v in values], found


# -- clip


@caught_by(
    "test_clip_brings_the_joint_norm_to_the_limit", "test_clip_norm_clips_the_true_gradients"
)
class ClipsNothing(NumpyBackend):
    def clip(self, grads, max_norm):
        return list(grads), super().clip(grads, max_norm)[1]


@caught_by("test_clip_brings_the_joint_norm_to_the_limit")
class ClipsEachGradientByItself(NumpyBackend):
    def clip(self, grads, max_norm):
        each = [super(ClipsEachGradientByItself, self).clip([g], max_norm)[0][0] for g in grads]
        return each, super().clip(grads, max_norm)[1]


@caught_by("test_clip_leaves_smaller_gradients_alone", "test_clip_of_zeros_is_zeros")
class AlwaysNormalizes(NumpyBackend):
    def clip(self, grads, max_norm):
        _, norm = super().clip(grads, max_norm)
        with np.errstate(invalid="ignore", divide="ignore"):
            return [g if g is None else g * np.float32(max_norm / norm) for g in grads], norm


@caught_by("test_clip_tells_the_norm_before")
class TellsTheNormAfter(NumpyBackend):
    def clip(self, grads, max_norm):
        values, norm = super().clip(grads, max_norm)
        return values, min(norm, max_norm)


@caught_by("test_clip_passes_none_gradients_over")
class ClipsNoneAway(NumpyBackend):
    def clip(self, grads, max_norm):
        return super().clip([g for g in grads if g is not None], max_norm)


@caught_by("test_clip_of_no_gradient_tells_a_norm_of_zero")
class TellsOfNoGradientTheLimit(NumpyBackend):
    def clip(self, grads, max_norm):
        values, norm = super().clip(grads, max_norm)
        return values, norm if any(g is not None for g in grads) else max_norm


@caught_by(
    "test_clip_values_brings_each_number_to_the_limit", "test_clip_value_clips_the_true_gradients"
)
class ClipsNoValues(NumpyBackend):
    def clip_values(self, grads, limit):
        return list(grads)


@caught_by("test_clip_values_brings_each_number_to_the_limit")
class ClipsFromAboveAlone(NumpyBackend):
    def clip_values(self, grads, limit):
        return [g if g is None else np.minimum(g, g.dtype.type(limit)) for g in grads]


@caught_by("test_clip_each_norm_clips_each_true_gradient")
class ClipsASingleGradientTwice(NumpyBackend):
    def clip(self, grads, max_norm):
        return super().clip(grads, max_norm / 2 if len(grads) == 1 else max_norm)


# -- step or skip


class DecidesOnDevice(NumpyBackend):
    """Whether there was an overflow is an array, which the backend reads when it steps."""

    def unscale(self, grads, scale):
        unscaled, found = super().unscale(grads, scale)
        return unscaled, np.asarray(found)


@caught_by(
    "test_a_skipped_step_leaves_every_bit",
    "test_step_skips_what_overflowed",
    "test_a_skipped_training_step_leaves_every_bit",
    "test_an_overflow_in_any_micro_batch_skips_the_step",
    "test_each_of_two_optimizers_is_skipped_by_its_own_gradients",
)
class StepsOnInf(DecidesOnDevice):
    def step_unless(self, optimizer, parameters, grads, found):
        self.step(optimizer, parameters, grads)
        return True


@caught_by("test_a_skipped_step_leaves_every_bit", "test_step_skips_what_overflowed")
class StepsOnNan(DecidesOnDevice):
    def step_unless(self, optimizer, parameters, grads, found):
        found = FINITE if found == NAN else found
        return super().step_unless(optimizer, parameters, grads, found)


@caught_by(
    "test_a_skipped_step_leaves_every_bit", "test_a_skipped_step_leaves_no_trace_in_the_next"
)
class UpdatesASlotOnASkippedStep(DecidesOnDevice):
    """Steps with gradients of zero, as a mask does, and puts the parameters back."""

    def step_unless(self, optimizer, parameters, grads, found):
        if not found:
            return super().step_unless(optimizer, parameters, grads, found)
        kept = [p.copy() for p in parameters]
        self.step(optimizer, parameters, [np.zeros_like(p) for p in parameters])
        for parameter, before in zip(parameters, kept, strict=True):
            parameter[...] = before
        return False


@caught_by(
    "test_a_skipped_step_leaves_every_bit", "test_the_scheduler_moves_on_applied_steps_alone"
)
class SaysThatASkippedStepWasApplied(DecidesOnDevice):
    def step_unless(self, optimizer, parameters, grads, found):
        super().step_unless(optimizer, parameters, grads, found)
        return True


@caught_by(
    "test_it_steps_on_finite_and_on_unchecked_gradients",
    "test_a_disabled_scaler_passes_everything_through",
    "test_the_loss_falls",
    "test_the_loss_falls_under_a_scaler",
)
class NeverSteps(NumpyBackend):
    def step(self, optimizer, parameters, grads):
        pass


@caught_by("test_a_disabled_scaler_steps_on_infinite_gradients")
class SkipsByItself(NumpyBackend):
    def step(self, optimizer, parameters, grads):
        if all(np.isfinite(g).all() for g in grads if g is not None):
            super().step(optimizer, parameters, grads)


@caught_by(
    "test_a_parameter_without_gradient_is_not_stepped",
    "test_slots_of_a_parameter_without_gradient_stay",
)
class TakesNoneForZero(NumpyBackend):
    def step(self, optimizer, parameters, grads):
        pairs = zip(grads, parameters, strict=True)
        filled = [np.full_like(p, 1e-3) if g is None else g for g, p in pairs]
        super().step(optimizer, parameters, filled)


@caught_by(
    "test_a_step_changes_parameters_and_slots",
    "test_it_steps_on_finite_and_on_unchecked_gradients",
)
class ForgetsTheSlots(NumpyBackend):
    """Plain gradient descent by hand, whatever the optimizer is."""

    def step(self, optimizer, parameters, grads):
        for parameter, gradient in zip(parameters, grads, strict=True):
            if gradient is not None:
                parameter -= np.float32(RATE) * gradient


# -- the state of the scaler


def with_store(**methods):
    """A backend whose store has these methods in place of ``HostStore``'s; it returns what it reads."""
    change = methods.get("update", HostStore.update)

    def update(self, found, config):
        change(self, found, config)
        return self.read()

    def scale_store(self, state, like):
        return type("BrokenStore", (HostStore,), {**methods, "update": update})(state)

    return scale_store


def with_rule(change):
    """A store whose rule is the right one for ``change(config)``."""
    return with_store(
        update=lambda self, found, config: HostStore.update(self, found, change(config))
    )


def changed(config, **fields):
    return ScalerConfig(**{**vars(config), **fields})


RULE = "test_the_scale_follows_the_rule"
TOO_LARGE = "test_a_scale_that_is_too_large_backs_off_until_a_step_is_applied"


@caught_by(RULE, "test_inf_and_nan_back_off_alike", "test_step_skips_what_overflowed", TOO_LARGE)
class ForgetsToBackOff(NumpyBackend):
    scale_store = with_rule(lambda config: changed(config, backoff_factor=1.0))


@caught_by(RULE, "test_the_scale_grows_after_growth_interval_finite_steps")
class GrowsEveryStep(NumpyBackend):
    scale_store = with_rule(lambda config: changed(config, growth_interval=1))


@caught_by(
    RULE,
    "test_the_scale_grows_after_growth_interval_finite_steps",
    "test_the_result_tells_the_scale_used_and_the_skips_in_a_row",
)
class NeverGrows(NumpyBackend):
    scale_store = with_rule(lambda config: changed(config, growth_factor=1.0))


@caught_by(RULE)
class IgnoresTheFloor(NumpyBackend):
    scale_store = with_rule(lambda config: changed(config, min_scale=2.0**-126))


@caught_by(RULE)
class IgnoresTheCeiling(NumpyBackend):
    scale_store = with_rule(lambda config: changed(config, max_scale=2.0**127))


@caught_by(RULE)
class BacksOffOnEveryOverflow(NumpyBackend):
    scale_store = with_rule(lambda config: changed(config, backoff_interval=1))


@caught_by(RULE)
class MovesAStaticScale(NumpyBackend):
    scale_store = with_rule(lambda config: changed(config, dynamic=True))


@caught_by(RULE, "test_no_argument_of_a_scaler_is_ignored")
class FixesTheFactors(NumpyBackend):
    """As Keras does, whose scaler knows 2 and 0.5 alone."""

    scale_store = with_rule(lambda config: changed(config, growth_factor=2.0, backoff_factor=0.5))


def count_from_now_on(self, found, config):
    """Overflows need not come in a row to be counted."""
    bad = self.read().bad
    HostStore.update(self, found, config)
    if not found and config.backoff_interval > 1:
        HostStore.write(self, self.read()._replace(bad=bad))


@caught_by(RULE)
class CountsOverflowsThatAreNotConsecutive(NumpyBackend):
    scale_store = with_store(update=count_from_now_on)


def back_off_on_inf_alone(self, found, config):
    HostStore.update(self, INF if found == INF else FINITE, config)


@caught_by("test_inf_and_nan_back_off_alike", "test_two_optimizers_back_the_scale_off_once")
class BacksOffOnInfAlone(NumpyBackend):
    scale_store = with_store(update=back_off_on_inf_alone)


def write_the_scale_alone(self, state):
    HostStore.write(self, ScaleState(state.scale, 0, 0, 0))


def update_all(self, found, config):
    written = HostStore(self.read())
    written.update(found, config)
    HostStore.write(self, written.read())


@caught_by(
    "test_a_store_starts_with_the_given_state",
    "test_a_store_reads_what_was_written",
    "test_the_counters_make_the_round_trip",
    "test_a_reloaded_scaler_goes_on_as_the_saved_one",
    "test_a_reloaded_step_goes_on_as_the_saved_one",
)
class LosesTheCountersOnWrite(NumpyBackend):
    scale_store = with_store(write=write_the_scale_alone, update=update_all)


@caught_by(
    "test_a_store_reads_what_was_written", "test_the_state_makes_the_round_trip_with_every_field"
)
class IgnoresWrite(NumpyBackend):
    scale_store = with_store(
        write=lambda self, state: hasattr(self, "_state") or HostStore.write(self, state),
        update=lambda self, found, config: vars(self).update(
            _state=updated(self.read(), found, config)
        ),
    )


def updated(state, found, config):
    store = HostStore(state)
    store.update(found, config)
    return store.read()


@caught_by("test_the_scale_is_rounded_to_float32")
class KeepsTheScaleInFloat64(NumpyBackend):
    scale_store = with_store(write=lambda self, state: vars(self).update(_state=state))


class _ReadOnce:
    """A loss whose buffer is freed when the host has read it."""

    def __init__(self, loss):
        self.held = [float(loss)]

    def __float__(self):
        return self.held.pop()


@caught_by("test_a_result_is_pickled")
class FreesTheLossThatWasRead(ChangesGradients):
    def changed(self, loss, aux, grads, factor, total):
        return _ReadOnce(loss), aux, grads


@caught_by("test_a_scaler_is_copied_between_iterations")
class CopiesShareTheirStore(NumpyBackend):
    """As of a variable that a copy refers to."""

    scale_store = with_store(__deepcopy__=lambda self, memo: self)


@caught_by("test_two_stores_are_independent")
class SharesOneStore(NumpyBackend):
    shared = None

    def scale_store(self, state, like):
        type(self).shared = type(self).shared or HostStore(state)
        return self.shared


@caught_by(
    "test_scale_multiplies_the_loss",
    "test_scale_takes_lists_and_dicts_of_losses",
    "test_the_framework_s_own_gradients_of_a_scaled_loss",
)
class ReadsAnotherScale(NumpyBackend):
    scale_store = with_store(
        read=lambda self: self._state._replace(scale=2 * self._state.scale),
    )


@caught_by("test_the_result_tells_the_scale_used_and_the_skips_in_a_row")
class ForgetsTheSkips(NumpyBackend):
    scale_store = with_store(read=lambda self: HostStore.read(self)._replace(consecutive_skips=0))


@caught_by(
    "test_alarms_sound_in_a_loop_by_hand",
    "test_a_run_of_skips_is_told_of_however_seldom_one_looks",
    RULE,
)
class ForgetsTheAlarms(NumpyBackend):
    scale_store = with_store(
        read=lambda self: HostStore.read(self)._replace(skip_warnings=0, stuck_steps=0)
    )


def count_nans_on(self, found, config):
    """Over finite steps, as one did who saw the steps with NaN alone."""
    before = self.read().consecutive_nans
    HostStore.update(self, found, config)
    if found == FINITE:
        HostStore.write(self, self.read()._replace(consecutive_nans=before))


class StateOfBefore(HostStore):
    def update(self, found, config):
        before = self.read()
        super().update(found, config)
        return before


@caught_by(RULE)
class ReturnsTheStateOfBefore(NumpyBackend):
    def scale_store(self, state, like):
        return StateOfBefore(state)


@caught_by("test_nans_that_finite_steps_part_are_no_run", RULE)
class CountsNansOverFiniteSteps(NumpyBackend):
    scale_store = with_store(update=count_nans_on)


# -- a decorated model


class Decorates(NumpyBackend):
    """Shares the plumbing of what follows: ``changed`` sees each decoration."""

    def decorate(self, model, optimizer, decoration):
        super().decorate(model, optimizer, self.changed(model, decoration))

    def changed(self, model, decoration):
        return decoration


def with_policy(decoration, **fields):
    return decoration._replace(policy=decoration.policy.replace(**fields))


class CallsModels(NumpyBackend):
    """``call`` is a ModelCall with a bug; decorated models are called through it."""

    def decorate(self, model, optimizer, decoration):
        super().decorate(model, optimizer, decoration)
        model.around_forward = self.call(**vars(model.around_forward))


KEPT = (
    "test_a_step_keeps_layers_and_casts_outputs",
    "test_a_layer_is_kept_by_its_name_or_a_pattern",
    "test_layers_are_kept_by_their_class",
    "test_a_step_keeps_layers",
    "test_a_schedule_keeps_layers_where_its_policies_say_so",
)
SCHEDULES = (
    "test_a_schedule_takes_a_built_model_from_level_to_level",
    "test_a_schedule_keeps_layers_where_its_policies_say_so",
    "test_a_schedule_by_loss_changes_what_runs",
    "test_a_schedule_by_skips_changes_what_runs",
)


@caught_by("test_layers_below_a_kept_one_are_kept_wherever_they_are_called")
class KeepsCallsOfNamedLayersAlone(CallsModels):
    class call(ModelCall):
        @contextmanager
        def in_effect(self):
            named = frozenset(map(id, self.decoration.kept))
            with super().in_effect(), nn._kept.during(named):
                yield


@caught_by("test_parameters_of_a_kept_layer_that_is_not_called_are_warned_of_once")
class TakesEachKeptLayerForCalled(NumpyBackend):
    def noting_kept_calls(self):
        return nullcontext(lambda: _Everything())


@caught_by("test_parameters_of_called_kept_layers_are_used_without_a_word")
class SeesNoCallOfKeptLayers(NumpyBackend):
    def noting_kept_calls(self):
        return nullcontext(lambda: ())


class _Everything:
    def __contains__(self, item):
        return True


@caught_by("test_layers_come_under_dotted_names_outer_before_inner")
class ListsInnerLayersFirst(NumpyBackend):
    def layers(self, model):
        return super().layers(model)[::-1]


@caught_by(
    "test_layers_come_under_dotted_names_outer_before_inner",
    "test_an_entry_that_matches_nothing_is_refused_and_names_what_is_near",
)
class ListsTheModelAlone(NumpyBackend):
    def layers(self, model):
        return super().layers(model)[:1]


@caught_by("test_a_layer_tells_its_class_and_the_shapes_of_its_own_parameters")
class CountsThePartsParametersToo(NumpyBackend):
    def layers(self, model):
        return [
            layer._replace(shapes={n: p.shape for n, p in layer.layer.named_parameters()})
            for layer in super().layers(model)
        ]


@caught_by(
    "test_a_layer_tells_its_class_and_the_shapes_of_its_own_parameters",
    "test_layers_are_kept_by_their_class",
)
class TellsTheModuleOfAClass(NumpyBackend):
    def layers(self, model):
        return [
            layer._replace(kind=f"{type(layer.layer).__module__}.{layer.kind}")
            for layer in super().layers(model)
        ]


@caught_by(
    "test_O2_reads_parameters_in_low_precision",
    "test_O2_is_the_reference_with_rounded_parameters",
    "test_a_schedule_takes_a_built_model_from_level_to_level",
)
class ReadsParametersWhole(CallsModels):
    """O1 under the name of O2."""

    class call(ModelCall):
        def in_effect(self):
            return nullcontext()


@caught_by("test_O2_gradients_are_float32_that_were_rounded")
class ReadsParametersWholeForGradients(NumpyBackend):
    """Each op rounds its own gradient; what is summed of them is not rounded."""

    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        loss, aux, grads = super().gradients(
            loss_fn, model, batch, policy, factor, total, optimizer
        )
        return loss, aux, [g if g is None else np.float32(1 + 2.0**-20) * g for g in grads]


@caught_by("test_O2_gradients_are_float32_that_were_rounded")
class GivesLowGradientsOfLowParameters(NumpyBackend):
    """As torch does natively."""

    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        loss, aux, grads = super().gradients(
            loss_fn, model, batch, policy, factor, total, optimizer
        )
        dtype = casting.DTYPES[policy.dtype]
        return loss, aux, [g if g is None else g.astype(dtype) for g in grads]


@caught_by("test_O2_micro_batches_are_summed_in_float32")
class SumsLowGradientsInLowPrecision(NumpyBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        loss, aux, grads = super().gradients(
            loss_fn, model, batch, policy, factor, total, optimizer
        )
        return loss, aux, [g if g is None else self.cast(g, policy.dtype) for g in grads]


@caught_by("test_O2_leaves_the_inputs_of_the_model_to_its_layers")
class CastsInputs(CallsModels):
    class call(ModelCall):
        def _call(self, forward, *inputs, **options):
            low = [casting.cast(x, self.decoration.policy.dtype) for x in inputs]
            return super()._call(forward, *low, **options)


@caught_by("test_O1_casts_neither")
class TakesO1ForO2(Decorates):
    def changed(self, model, decoration):
        return with_policy(decoration, level="O2")


@caught_by(
    "test_O2_leaves_the_parameters_of_normalizations_in_float32",
    "test_O2_is_the_reference_with_rounded_parameters",
)
class RoundsNormalizations(CallsModels):
    """As ``model.half()`` does."""

    class call(ModelCall):
        @contextmanager
        def in_effect(self):
            dtype = self.decoration.policy.dtype
            parts = [getattr(self.owner, name) for name in ("hidden", "norm", "head")]
            arrays = [a for part in parts if part is not None for a in part.parameters()]
            with nn.substituted({id(a): casting.cast(nn.present(a), dtype) for a in arrays}):
                yield

        def __call__(self, forward, *inputs, **options):
            object.__setattr__(self, "owner", forward.__self__)
            return super().__call__(forward, *inputs, **options)


@caught_by(
    "test_O2_outputs_are_within_the_low_dtype_s_error_and_show_it",
    "test_O2_gradients_are_within_the_low_dtype_s_error_and_show_it",
    "test_O2_reads_parameters_in_low_precision",
    "test_train_step_at_O2_decorates_by_itself",
)
class DecoratesNothing(NumpyBackend):
    def decorate(self, model, optimizer, decoration):
        pass

    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        return super().gradients(loss_fn, model, batch, Policy("O0"), factor, total, optimizer)

    def decoration(self, model, optimizer):
        return Decoration(Policy("O2", "float16"))


@caught_by("test_O2_gradients_are_within_the_low_dtype_s_error_and_show_it")
class GivesGradientsOfFloat32AtO2(NumpyBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        around, model.around_forward = model.around_forward, None
        try:
            return super().gradients(loss_fn, model, batch, Policy("O0"), factor, total, optimizer)
        finally:
            model.around_forward = around


@caught_by(
    "test_O2_reads_parameters_in_low_precision",
    "test_at_O2_a_denied_op_is_float32_and_an_unlisted_one_follows",
)
class RunsO2InTheOtherDtype(Decorates):
    def changed(self, model, decoration):
        return with_policy(decoration, dtype="bfloat16")


@caught_by("test_at_O2_a_denied_op_is_float32_and_an_unlisted_one_follows")
class DeniesNothingAtO2(Decorates):
    """Low precision everywhere, as in ``model.half()``."""

    def changed(self, model, decoration):
        return with_policy(decoration, allow=("exp",))


@caught_by("test_at_O2_a_denied_op_is_float32_and_an_unlisted_one_follows")
class KeepsUnlistedOpsInFloat32AtO2(Decorates):
    def changed(self, model, decoration):
        return with_policy(decoration, deny=("add",))


@caught_by("test_a_decorated_model_runs_under_its_policy_wherever_it_is_called")
class OpensNoRegion(Decorates):
    def changed(self, model, decoration):
        return decoration._replace(standalone=False)


@caught_by("test_a_region_around_a_decorated_model_changes_nothing")
class LeavesRegionsToTheCaller(CallsModels):
    """Within one it takes the decoration for done."""

    class call(ModelCall):
        def __call__(self, forward, *inputs, **options):
            if casting.casts_here():
                return forward(*inputs, **options)
            return super().__call__(forward, *inputs, **options)


@caught_by("test_below_O2_train_step_s_own_decoration_acts_inside_of_the_step_alone")
class DecoratesEveryCall(Decorates):
    def changed(self, model, decoration):
        return decoration._replace(standalone=True)


@caught_by(
    "test_a_weight_beyond_float16_is_named_and_the_layer_to_keep",
    "test_steps_tell_once_of_a_weight_beyond_float16",
    "test_weights_that_are_all_zero_in_float16_are_named",
    "test_digits_that_training_had_are_told_of_where_they_are_rounded",
)
class FindsNoMagnitudes(NumpyBackend):
    def largest_magnitudes(self, model, kept, dtype):
        return []


@caught_by("test_a_weight_beyond_float16_is_named_and_the_layer_to_keep")
class FindsTheLargestValue(NumpyBackend):
    """In the place of the largest magnitude."""

    def largest_magnitudes(self, model, kept, dtype):
        return [
            each._replace(largest=getattr(each.layer.layer, each.parameter).max())
            for each in super().largest_magnitudes(model, kept, dtype)
        ]


@caught_by(
    "test_nothing_is_told_of_weights_that_fit_or_that_no_policy_helps",
    "test_nothing_is_told_of_weights_that_do_not_become_zero",
    "test_digits_that_training_had_are_told_of_where_they_are_rounded",
)
class LooksAtKeptLayersToo(NumpyBackend):
    def largest_magnitudes(self, model, kept, dtype):
        return super().largest_magnitudes(model, [], dtype)


@caught_by("test_digits_that_training_had_are_told_of_where_they_are_rounded")
class FindsThatAllAreRounded(NumpyBackend):
    def largest_magnitudes(self, model, kept, dtype):
        found = super().largest_magnitudes(model, kept, dtype)
        return [each._replace(is_rounded=True) for each in found]


@caught_by("test_value_and_grad_at_O2_is_for_a_decorated_model")
class ForgetsItsDecoration(NumpyBackend):
    def decoration(self, model, optimizer):
        return None


@caught_by("test_decoration_tells_what_a_model_is_decorated_with")
class TellsNoKeptLayers(NumpyBackend):
    def decoration(self, model, optimizer):
        present = super().decoration(model, optimizer)
        return present and present._replace(kept=())


# -- master weights


@caught_by(
    "test_200_updates_under_half_an_ulp_move_the_master_weights",
    "test_the_user_s_own_steps_at_O2_move_the_masters",
    "test_masters_and_slots_go_through_a_schedule",
    "test_training_goes_on_after_undecorate_with_the_slots_it_had",
)
class HasNoMasterWeights(Decorates):
    def changed(self, model, decoration):
        return with_policy(decoration, masters=None)

    def decorate(self, model, optimizer, decoration):
        if optimizer is not None:
            super().decorate(model, optimizer, decoration)


@caught_by(
    "test_without_master_weights_updates_under_half_an_ulp_are_lost",
    "test_without_master_weights_larger_updates_are_rounded",
)
class AlwaysHasMasterWeights(Decorates):
    def changed(self, model, decoration):
        return with_policy(decoration, masters="float32")


@caught_by("test_without_master_weights_larger_updates_are_rounded")
class LosesEveryUpdateWithoutMasters(NumpyBackend):
    def step(self, optimizer, parameters, grads):
        kept = [p.copy() for p in parameters]
        super().step(optimizer, parameters, grads)
        if low_arrays.among(parameters):
            for parameter, before in zip(parameters, kept, strict=True):
                parameter[...] = before


@caught_by("test_undecorate_ends_the_rounding_without_master_weights")
class RoundsAfterUndecorateToo(NumpyBackend):
    def undecorate(self, model, optimizer):
        present = super().decoration(model, optimizer)
        super().undecorate(model, optimizer)
        if present is not None and present.policy.masters is None:
            optimizer.still_low = low_arrays.LowArrays(model.parameters(), present.policy)


@caught_by("test_what_is_refused_with_another_optimizer_leaves_the_one_that_was")
class ForgetsItsOptimizers(NumpyBackend):
    def served(self, model):
        return []


@caught_by("test_several_optimizers_are_decorated_together")
class ServesOneOptimizer(NumpyBackend):
    def serve(self, model, optimizer):
        pass


@caught_by("test_another_step_is_refused_where_one_keeps_weights_in_16_bits")
class TellsOfMastersThatAreNotThere(NumpyBackend):
    def decoration(self, model, optimizer):
        present = super().decoration(model, optimizer)
        return present and with_policy(present, masters="float32")


@caught_by("test_steps_of_several_policies_take_turns_and_nothing_is_rounded")
class RoundsWhatItUndecorates(NumpyBackend):
    def undecorate(self, model, optimizer):
        if self.decoration(model, None) is not None:
            for parameter in model.parameters():
                parameter[...] = casting.cast(parameter, "bfloat16")
        super().undecorate(model, optimizer)


@caught_by("test_a_step_at_O2_shows_in_the_next_forward_pass")
class NeverWritesMastersBack(CallsModels):
    """The low copies are those of the day when the model was decorated."""

    class call(ModelCall):
        def in_effect(self):
            if not hasattr(self, "copies"):
                dtype = self.decoration.policy.dtype
                copies = {id(a): casting.cast(a, dtype) for a in self.low}
                object.__setattr__(self, "copies", copies)
            return nn.substituted(self.copies)


@caught_by("test_a_skipped_step_at_O2_leaves_every_bit")
class StepsMastersOnInf(DecidesOnDevice):
    def step_unless(self, optimizer, parameters, grads, found):
        self.step(optimizer, parameters, [np.zeros_like(p) for p in parameters] if found else grads)
        return not found


@caught_by("test_a_skipped_step_at_O2_leaves_every_bit")
class RoundsMastersOnASkippedStep(DecidesOnDevice):
    """As a master does that is made again from its low copy."""

    def step_unless(self, optimizer, parameters, grads, found):
        if found:
            for parameter in parameters:
                parameter[...] = parameter.astype(np.float16)
        return super().step_unless(optimizer, parameters, grads, found)


@caught_by(
    "test_training_goes_on_after_undecorate_with_the_slots_it_had",
    "test_masters_and_slots_go_through_a_schedule",
    "test_undecorate_takes_back_every_bit_and_attribute",
)
class LosesTheSlots(NumpyBackend):
    def undecorate(self, model, optimizer):
        super().undecorate(model, optimizer)
        if optimizer is not None:
            optimizer.state = [{} for _ in optimizer.parameters]


# -- kept layers


@caught_by(*KEPT, "test_a_kept_layer_s_gradients_are_not_rounded")
class CastsKeptLayers(Decorates):
    def changed(self, model, decoration):
        return decoration._replace(kept=())


@caught_by(*KEPT)
class KeepsParametersAlone(CallsModels):
    """Their arrays are float32, their ops are not."""

    class call(ModelCall):
        @contextmanager
        def in_effect(self):
            with super().in_effect():
                token = nn._kept.set(frozenset())
                yield
                nn._kept.reset(token)


@caught_by(
    "test_a_layer_is_kept_by_its_name_or_a_pattern",
    "test_a_kept_layer_s_gradients_are_not_rounded",
)
class KeepsOpsAlone(CallsModels):
    """The parameters of kept layers are read in low precision."""

    class call(ModelCall):
        @contextmanager
        def in_effect(self):
            dtype = self.decoration.policy.dtype
            kept = [a for layer in self.decoration.kept for a in layer.parameters()]
            low = kept if self.decoration.policy.level == "O2" else []
            with (
                super().in_effect(),
                nn.substituted({id(a): casting.cast(nn.present(a), dtype) for a in low}),
            ):
                yield


@caught_by("test_the_other_layers_are_not_kept", "test_a_step_keeps_layers_and_casts_outputs")
class KeepsTheWholeModel(Decorates):
    def changed(self, model, decoration):
        return decoration._replace(kept=[model]) if decoration.kept else decoration


# -- outputs


@caught_by(
    "test_low_outputs_come_in_float32",
    "test_the_loss_function_gets_outputs_in_float32",
    "test_outputs_come_in_output_dtype",
    "test_a_step_keeps_layers_and_casts_outputs",
)
class LeavesOutputsIn16Bit(CallsModels):
    class call(ModelCall):
        def _call(self, forward, *inputs, **options):
            if self.decoration.policy.level == "O2":
                inputs = [casting.cast(x, self.decoration.policy.dtype) for x in inputs]
            with self.in_effect():
                return forward(*inputs, **options)


@caught_by("test_a_step_keeps_layers_and_casts_outputs", "test_a_step_keeps_layers")
class RoundsOutputs(CallsModels):
    """To the low dtype, and back."""

    class call(ModelCall):
        def _call(self, forward, *inputs, **options):
            outputs = super()._call(forward, *inputs, **options)
            dtype = self.decoration.policy.dtype
            low = map_leaves(lambda x: casting.cast(x, dtype), outputs)
            return map_leaves(lambda x: casting.cast(x, "float32"), low)


@caught_by("test_low_outputs_come_in_float32", "test_outputs_come_in_output_dtype")
class CastsTheFirstOutputAlone(CallsModels):
    """It does not look into dictionaries."""

    class call(ModelCall):
        def _call(self, forward, *inputs, **options):
            nested = []

            def hidden(*inputs, **options):
                nested.append(forward(*inputs, **options))
                return nested[0][-1] if isinstance(nested[0], tuple) else nested[0]

            last = super()._call(hidden, *inputs, **options)
            return (*nested[0][:-1], last) if isinstance(nested[0], tuple) else last


@caught_by("test_no_field_of_a_policy_is_ignored", "test_outputs_come_in_output_dtype")
class AlwaysReturnsFloat32(Decorates):
    def changed(self, model, decoration):
        return with_policy(decoration, output_dtype="float32")


@caught_by("test_outputs_that_are_integers_or_float64_stay_so")
class CastsEveryOutput(CallsModels):
    class call(ModelCall):
        def _call(self, forward, *inputs, **options):
            outputs = super()._call(forward, *inputs, **options)
            return map_leaves(lambda x: x.astype(np.float16), outputs)


# -- undecorate


@caught_by(
    "test_O0_takes_a_decoration_back",
    "test_decorating_again_replaces_what_was",
    "test_undecorate_takes_back_every_bit_and_attribute",
)
class NeverUndecorates(NumpyBackend):
    def undecorate(self, model, optimizer):
        pass


@caught_by("test_undecorated_for_a_block_a_model_has_its_masters_and_then_goes_on")
class StaysDecoratedForABlock(NumpyBackend):
    def undecorated(self, model, optimizer):
        return nullcontext()


@caught_by(
    "test_undecorate_takes_back_every_bit_and_attribute",
    "test_undecorate_after_training_leaves_float32_as_it_was",
)
class LeavesMarksOnKeptLayers(NumpyBackend):
    def undecorate(self, model, optimizer):
        present = super().decoration(model, optimizer)
        super().undecorate(model, optimizer)
        for layer in present.kept if present else ():
            layer.was_kept = True


@caught_by("test_undecorate_takes_back_every_bit_and_attribute")
class GivesLowWeightsBack(NumpyBackend):
    """Those that were cast, instead of the masters."""

    def undecorate(self, model, optimizer):
        if (present := super().decoration(model, optimizer)) is not None:
            for array in model.parameters():
                array[...] = self.cast(array, present.policy.dtype)
        super().undecorate(model, optimizer)


@caught_by("test_undecorate_of_what_is_not_decorated_changes_nothing")
class MarksWhatItUndecorates(NumpyBackend):
    def undecorate(self, model, optimizer):
        super().undecorate(model, optimizer)
        model.around_forward = None


@caught_by("test_a_refused_decoration_changes_nothing")
class RefusesTooLate(NumpyBackend):
    def decorate(self, model, optimizer, decoration):
        for array in model.parameters():
            array[...] = array.astype(np.float16)
        super().decorate(model, optimizer, decoration)


@caught_by("test_a_refused_decoration_changes_nothing")
class RefusesNothing(NumpyBackend):
    def decorate(self, model, optimizer, decoration):
        policy = decoration.policy.replace(lists="torch")
        super().decorate(model, optimizer, decoration._replace(policy=policy))


@caught_by("test_below_O2_a_part_may_have_a_step_of_its_own")
class RefusesEveryDecoratedPart(NumpyBackend):
    def decorate(self, model, optimizer, decoration):
        if any(module.around_forward is not None for _, module in model.named_modules()):
            raise UnsupportedError
        super().decorate(model, optimizer, decoration)


@caught_by("test_below_O2_a_part_may_have_a_step_of_its_own")
class OpensTheRegionOfAPart(Decorates):
    def changed(self, model, decoration):
        return decoration._replace(standalone=True)


@caught_by("test_value_and_grad_at_O1_follows_its_policy")
class DecoratesAtO2Alone(NumpyBackend):
    def decorate(self, model, optimizer, decoration):
        if decoration.policy.level == "O2":
            super().decorate(model, optimizer, decoration)


@caught_by("test_a_model_with_a_decorated_part_is_refused")
class DecoratesOverDecoratedParts(NumpyBackend):
    def decorate(self, model, optimizer, decoration):
        for _, module in model.named_modules():
            vars(module).pop("around_forward", None)
        super().decorate(model, optimizer, decoration)


@caught_by(*SCHEDULES, "test_decorating_again_replaces_what_was")
class FollowsItsFirstDecorationForEver(NumpyBackend):
    """As a layer does that was built under it."""

    def decorate(self, model, optimizer, decoration):
        if super().decoration(model, optimizer) is None:
            super().decorate(model, optimizer, decoration)

    def undecorate(self, model, optimizer):
        pass

    def decoration(self, model, optimizer):
        return None


# -- execution


@caught_by("test_execution_is_what_was_asked_for")
class AlwaysSaysNative(NumpyBackend):
    def execution(self, policy):
        return "native"


@caught_by("test_execution_is_what_was_asked_for")
class AlwaysSaysSimulated(NumpyBackend):
    def execution(self, policy):
        return "simulated"


class Simulates(NumpyBackend):
    """``changed`` sees the policies that ask for a simulation."""

    def autocast(self, policy):
        asked = policy.execution == "simulated"
        return super().autocast(self.changed(policy) if asked else policy)

    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        policy = self.changed(policy) if policy.execution == "simulated" else policy
        return super().gradients(loss_fn, model, batch, policy, factor, total, optimizer)

    def decorate(self, model, optimizer, decoration):
        policy = decoration.policy
        if policy.execution == "simulated":
            decoration = decoration._replace(policy=self.changed(policy))
        super().decorate(model, optimizer, decoration)

    def decoration(self, model, optimizer):
        present = super().decoration(model, optimizer)
        return present and with_policy(present, execution="simulated")


@caught_by(
    "test_a_simulated_product_is_rounded_before_and_after",
    "test_a_simulated_op_that_follows_is_rounded_once",
    "test_simulated_O2_gradients_are_rounded",
)
class SimulatesFloat16AlwaysByBfloat16(Simulates):
    def changed(self, policy):
        other = {"float16": "bfloat16", "bfloat16": "float16"}.get(policy.dtype, policy.dtype)
        return (
            policy if policy.level == "O2" and other == "float16" else policy.replace(dtype=other)
        )

    def decoration(self, model, optimizer):
        present = NumpyBackend.decoration(self, model, optimizer)
        return present and with_policy(present, dtype="float16")


@caught_by(
    "test_a_simulated_product_is_rounded_before_and_after",
    "test_a_simulated_op_that_follows_is_rounded_once",
)
class SimulatesWithoutRoundingResults(NumpyBackend):
    """Inputs are rounded, what comes of them is not."""

    @contextmanager
    def autocast(self, policy):
        def product(left, right):
            low = (self.cast(x, policy.dtype) for x in (left, right))
            return np.matmul(*(x.astype(np.float32) for x in low))

        with super().autocast(policy):
            if policy.execution != "simulated":
                yield
                return
            with replaced(anp, matmul=product):
                yield


@caught_by("test_a_simulated_denied_op_is_float32")
class SimulatesDeniedOps(Simulates):
    def changed(self, policy):
        return policy.replace(allow=("exp",))


# -- the adapter as a whole


@caught_by("test_no_argument_of_decorate_is_ignored", "test_no_field_of_a_recipe_is_ignored")
class IgnoresTheSaveDtype(NumpyBackend):
    def decorate(self, model, optimizer, decoration):
        super().decorate(model, optimizer, decoration._replace(save_dtype=None))


@caught_by("test_an_interrupted_step_has_not_happened")
class MovesTheWeightsOfAnInterruptedPass(NumpyBackend):
    def gradients(self, loss_fn, model, *arguments):
        try:
            return super().gradients(loss_fn, model, *arguments)
        except Exception:
            for parameter in self.parameters(model):
                parameter *= 0.5
            raise


@caught_by("test_four_threads_each_train_their_own_model")
class CastsInTheMainThreadAlone(NumpyBackend):
    def gradients(self, loss_fn, model, batch, policy, *arguments):
        in_main = threading.current_thread() is threading.main_thread()
        return super().gradients(
            loss_fn, model, batch, policy if in_main else Policy("O0"), *arguments
        )


@caught_by("test_a_copy_of_a_step_goes_on_by_itself")
class CopiesNothing(NumpyBackend):
    def copied(self, model, optimizer, memo):
        return model, optimizer


@caught_by("test_a_dropped_step_is_freed_at_once")
class KeepsModels(NumpyBackend):
    kept: ClassVar = []

    def on_replicas(self, program, model):
        self.kept.append(model)
        return program


@caught_by("test_what_is_compiled_of_policies_is_bounded")
class KeepsPolicies(NumpyBackend):
    kept: ClassVar = []

    def autocast(self, policy):
        self.kept.append(policy)
        return super().autocast(policy)


@caught_by("test_what_becomes_of_a_sum_leaves_its_parts")
class AddsInPlace(NumpyBackend):
    def add(self, total, grads):
        for present, grad in zip(total, grads, strict=True):
            if grad is not None:
                present += grad
        return total


@caught_by(
    "test_ctrl_c_leaves_no_half_of_a_step", "test_ctrl_c_leaves_no_half_of_a_change_of_policy"
)
class HalvesTheWeightsMeanwhile(NumpyBackend):
    def gradients(self, loss_fn, model, *arguments):
        for parameter in self.parameters(model):
            parameter *= 0.5
        found = super().gradients(loss_fn, model, *arguments)
        for parameter in self.parameters(model):
            parameter *= 2.0
        return found


@caught_by("test_no_argument_of_a_step_is_ignored")
class NeitherClipsNorTellsTheNorm(NumpyBackend):
    def clip(self, grads, max_norm):
        return list(grads), None


@caught_by("test_a_method_takes_the_arguments_of_the_protocol")
class RenamesAnArgument(NumpyBackend):
    def clip(self, grads, limit):
        return super().clip(grads, limit)


@caught_by("test_a_method_takes_the_arguments_of_the_protocol")
class AddsAnArgument(NumpyBackend):
    def cast(self, x, dtype, copy=False):
        return super().cast(x, dtype)


@caught_by(
    "test_the_name_is_the_framework_s_root_module",
    "test_it_is_found_from_its_arrays_models_and_optimizers",
)
class HasAnotherName(NumpyBackend):
    name = "np"


@caught_by("test_it_is_made_without_arguments")
class NeedsAnArgument(NumpyBackend):
    def __init__(self, device):
        self.device = device


@caught_by("test_it_says_whether_its_users_expect_a_compiled_step")
class DoesNotSayWhetherItCompiles(NumpyBackend):
    compiles_by_default = None


@caught_by("test_compiling_is_refused_where_there_is_no_compiler")
class IgnoresCompile(NumpyBackend):
    def compile(self, build, loss_fn):
        return build(loss_fn)


# -- checks, micro-batches and states


@caught_by("test_a_check_alone_leaves_every_bit")
class ACheckCleansUp(NumpyBackend):
    """As Paddle's kernel does with what it found."""

    def unscale(self, grads, scale):
        values, found = super().unscale(grads, scale)
        if scale is None and found:
            for g in values:
                g[~np.isfinite(g)] = 0.0
        return values, found


@caught_by("test_a_check_alone_finds", "test_a_step_without_scaling_is_skipped_too")
class ChecksScaledGradientsAlone(NumpyBackend):
    def unscale(self, grads, scale):
        return (grads, FINITE) if scale is None else super().unscale(grads, scale)


@caught_by("test_overflows_are_named")
class NamesParametersByTheirKind(NumpyBackend):
    def parameter_names(self, model):
        return [name[0] for name in super().parameter_names(model)]


@caught_by("test_gradients_are_added", "test_a_dropped_micro_batch_is_taken_once_more")
class ForgetsTheTotal(NumpyBackend):
    def add(self, total, grads):
        return list(grads)


def keep_the_first_settings(self, found, config):
    """As a trace does that is not made anew."""
    self.settings = getattr(self, "settings", config)
    HostStore.update(self, found, self.settings)


@caught_by("test_settings_that_are_loaded_hold_from_the_next_step_on")
class KeepsTheFirstSettings(NumpyBackend):
    scale_store = with_store(update=keep_the_first_settings)


@caught_by("test_a_loaded_step_goes_on_bit_by_bit", "test_what_was_there_before_is_replaced")
class LoadsNoSlots(NumpyBackend):
    def write_optimizer(self, optimizer, model, state):
        pass


@caught_by("test_a_loaded_step_goes_on_bit_by_bit")
class LoadsNoRate(NumpyBackend):
    def write_optimizer(self, optimizer, model, state):
        rate = optimizer.lr
        super().write_optimizer(optimizer, model, state)
        optimizer.lr = rate


@caught_by("test_a_load_that_fails_has_not_happened")
class LoadsIntoWhatItHasRead(NumpyBackend):
    """It reads the slots themselves, and writes into them: what it read before is no memory of them."""

    def read_optimizer(self, optimizer, model):
        slots, settings = super().read_optimizer(optimizer, model)
        return OptimizerState({**slots, **own_arrays(optimizer, model)}, settings)

    def write_optimizer(self, optimizer, model, state):
        own = own_arrays(optimizer, model)
        super().write_optimizer(optimizer, model, state)
        for name, slots in training_state._states(optimizer, model):
            for slot in slots:
                if (array := own.get(f"{name}/{slot}")) is not None:
                    array[...] = slots[slot]
                    slots[slot] = array


def own_arrays(optimizer, model):
    return {
        f"{name}/{slot}": value
        for name, slots in training_state._states(optimizer, model)
        for slot, value in slots.items()
        if isinstance(value, np.ndarray)
    }


@caught_by("test_a_forged_slot_is_refused")
class LoadsWhateverSlotsThereAre(NumpyBackend):
    def write_optimizer(self, optimizer, model, state):
        with suppress(StateError):
            super().write_optimizer(optimizer, model, state)


@caught_by("test_a_loaded_step_goes_on_bit_by_bit", "test_what_was_there_before_is_replaced")
class SavesInFloat16(NumpyBackend):
    def read_weights(self, model):
        halves = {n: w.astype(np.float16) for n, w in super().read_weights(model).items()}
        return {name: half.astype(np.float32) for name, half in halves.items()}


@caught_by("test_weights_are_saved_as_their_masters")
class SavesLowCopies(NumpyBackend):
    def read_weights(self, model):
        low = {n: self.cast(w, "bfloat16") for n, w in super().read_weights(model).items()}
        return {name: weight.astype(np.float32) for name, weight in low.items()}


@caught_by("test_weights_written_are_those_that_train", "test_a_loaded_step_goes_on_bit_by_bit")
class WritesCopiesOfWeights(NumpyBackend):
    def write_weights(self, model, values):
        model._loaded = dict(values)


# -- seeing what runs


class Retold:
    """Hands on what it is told to an observer, changed by ``op``, ``arrived`` and ``left``."""

    def __init__(self, observer, op=None, arrived=None, left=None):
        self.op_ran = op or observer.op_ran
        self.gradient_arrived = arrived or observer.gradient_arrived
        self.gradient_left = left or observer.gradient_left


def retelling(make):
    """The method ``observe`` of a backend that tells ``make(observer)`` instead."""

    def observe(self, model, observer, *, gradients):
        return NumpyBackend.observe(self, model, make(observer), gradients=gradients)

    return observe


def telling_of_calls(change):
    """``observe`` with each call changed."""
    return retelling(
        lambda observer: Retold(
            observer,
            lambda call, inputs, outputs: observer.op_ran(change(call), inputs, outputs),
            lambda call, place, gradient: observer.gradient_arrived(change(call), place, gradient),
            lambda call, place, gradient: observer.gradient_left(change(call), place, gradient),
        )
    )


@caught_by(
    "test_observe_reports_ops_in_order_with_layer_and_dtype",
    "test_observe_reports_arrivals_before_leavings_and_the_last_op_first",
)
class KnowsNoLayers(NumpyBackend):
    observe = telling_of_calls(lambda call: call._replace(layer=""))


@caught_by("test_observe_reports_ops_in_order_with_layer_and_dtype")
class NumbersBackwards(NumpyBackend):
    observe = telling_of_calls(lambda call: call._replace(number=-call.number))


@caught_by(
    "test_observe_shows_a_denied_op_in_float32",
    "test_observe_shows_a_kept_layer_in_float32",
    "test_observe_shows_float32_at_O0",
)
class TellsThePolicyS(NumpyBackend):
    """What the policy says in general, not what ran."""

    observe = telling_of_calls(lambda call: call._replace(dtype="float16"))


@caught_by("test_observe_shows_what_was_handed_over_and_what_came_back")
class ShowsOutputsForInputs(NumpyBackend):
    observe = retelling(
        lambda observer: Retold(
            observer, lambda call, inputs, outputs: observer.op_ran(call, outputs, inputs)
        )
    )


@caught_by("test_observe_gives_outputs_the_dtype_that_they_have")
class ShowsStorage(NumpyBackend):
    observe = retelling(
        lambda observer: Retold(
            observer,
            lambda call, inputs, outputs: observer.op_ran(
                call, inputs, [output._replace(dtype="float32") for output in outputs]
            ),
        )
    )


@caught_by(
    "test_observe_shows_the_gradients_that_leave_for_the_parameters",
    "test_observe_shows_gradients_close_to_float64s",
)
class ShowsHalfTheGradient(NumpyBackend):
    observe = retelling(
        lambda observer: Retold(
            observer,
            arrived=lambda call, place, gradient: observer.gradient_arrived(
                call, place, gradient._replace(values=gradient.values / 2)
            ),
            left=lambda call, place, gradient: observer.gradient_left(
                call, place, gradient._replace(values=gradient.values / 2)
            ),
        )
    )


@caught_by("test_observe_shows_the_gradients_of_what_is_no_layer")
class ShowsGradientsOfLayersAlone(NumpyBackend):
    observe = retelling(
        lambda observer: Retold(
            observer,
            left=lambda call, place, gradient: (
                observer.gradient_left(call, place, gradient) if call.op == "linear" else None
            ),
        )
    )


@caught_by(
    "test_observe_shows_an_overflow_of_the_backward_pass",
)
class ShowsFiniteGradients(NumpyBackend):
    observe = retelling(
        lambda observer: Retold(
            observer,
            arrived=lambda call, place, gradient: observer.gradient_arrived(
                call, place, gradient._replace(values=np.nan_to_num(gradient.values))
            ),
            left=lambda call, place, gradient: observer.gradient_left(
                call, place, gradient._replace(values=np.nan_to_num(gradient.values))
            ),
        )
    )


@caught_by("test_observe_without_gradients_reports_none")
class AlwaysShowsGradients(NumpyBackend):
    def observe(self, model, observer, *, gradients):
        return super().observe(model, observer, gradients=True)


@caught_by(
    "test_observe_changes_no_bit", "test_observe_shows_what_was_handed_over_and_what_came_back"
)
class ObservesInFloat16(NumpyBackend):
    @contextmanager
    def observe(self, model, observer, *, gradients):
        inside = self.autocast(Policy("O1", "bfloat16", allow=["linear", "mean"]))
        with super().observe(model, observer, gradients=gradients), inside:
            yield


@caught_by(
    "test_observe_ends_with_an_exception",
    "test_observe_leaves_model_and_framework_as_they_were",
)
class NeverStopsObserving(NumpyBackend):
    def observe(self, model, observer, *, gradients):
        leave_open(casting._interception.region(None))
        leave_open(casting._watch.during(Watch(observer, gradients)))
        return nullcontext()


@caught_by("test_observe_does_not_see_other_threads")
class SeesEveryThread(NumpyBackend):
    """Each call of an op in the process, by a hook that no thread owns."""

    @contextmanager
    def observe(self, model, observer, *, gradients):
        original = anp.matmul

        def seen(*args):
            call = OpCall(10**6, "matmul", "", "float32", (), None)
            observer.op_ran(call, [], [])
            return original(*args)

        with super().observe(model, observer, gradients=gradients):
            inside = anp.matmul
            anp.matmul = seen
            try:
                yield
            finally:
                anp.matmul = inside


@caught_by("test_observed_values_come_as_float32", "test_observed_float64_stays_float64")
class ShowsFloat16(NumpyBackend):
    def to_numpy(self, x):
        return np.asarray(x).astype(np.float16)


@caught_by("test_observed_peak_memory_is_that_of_what_was_held")
class MeasuresWhatIsLeft(NumpyBackend):
    def peak_memory(self, action):
        action()
        return 0


# -- growth


class Keeping(NumpyBackend):
    """Keeps something of each call, whatever is done with the backend."""

    def kept(self):
        raise NotImplementedError

    def __init__(self):
        self._all_kept = []

    def autocast(self, policy):
        self._all_kept.append(self.kept())
        return super().autocast(policy)

    def gradients(self, *arguments):
        self._all_kept.append(self.kept())
        return super().gradients(*arguments)

    def decorate(self, *arguments):
        self._all_kept.append(self.kept())
        return super().decorate(*arguments)


@caught_by(
    "test_a_step_keeps_nothing",
    "test_batches_of_changing_size_leave_nothing",
    "test_skipped_steps_leave_nothing",
    "test_dropped_steps_leave_nothing",
    "test_value_and_grad_keeps_nothing",
    "test_a_loop_by_hand_keeps_nothing",
    "test_decorating_in_turns_keeps_nothing",
    "test_observing_keeps_nothing",
)
class KeepsObjects(Keeping):
    def kept(self):
        return [None]


@caught_by("test_value_and_grad_keeps_nothing", "test_a_loop_by_hand_keeps_nothing")
class KeepsMemory(Keeping):
    """As a graph in C++ does: an object that the garbage collector does not know."""

    def kept(self):
        return np.ones(2**15, np.float32)


@caught_by("test_a_dropped_step_frees_model_and_optimizer")
class KeepsOptimizers(NumpyBackend):
    def __init__(self):
        self._optimizers = []

    def step(self, optimizer, parameters, grads):
        self._optimizers.append(optimizer)
        super().step(optimizer, parameters, grads)


def test_the_suite_runs_alike_whatever_the_caller_s_options_are(monkeypatch):
    """The nightly run sets these; an option of a plugin that is off was an error of pytest's own."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-o cache_dir=nowhere -k nothing")
    name = "test_cast_back_to_float32"
    assert outcomes(NumpyHarness(), [name]) == {name: "passed"}


@pytest.mark.parametrize("backend, tests", SABOTAGE.cases)
def test_the_suite_fails_a_broken_backend(backend, tests, monkeypatch):
    monkeypatch.setattr(growth, "CALLS", 6)  # enough for these, which leave something at each call
    made = backend("cpu") if backend is NeedsAnArgument else backend()
    results = copy_context().run(outcomes, NumpyHarness(made), tests)
    assert results == dict.fromkeys(tests, "failed")


@pytest.fixture(autouse=True)
def _clean_interception(monkeypatch):
    """Some of the broken backends leave a region open or replace what the regions share."""
    monkeypatch.setattr(casting._interception, "active", casting._interception.active)
    yield
    while left_open:
        left_open.pop().__exit__()


@pytest.mark.nightly  # tests/numpy runs the suite on it as well, not by this file's runner
def test_the_suite_passes_an_intact_backend():
    results = outcomes(NumpyHarness())
    assert {name: o for name, o in results.items() if o not in ("passed", "skipped")} == {}
    assert sorted(results) == names_of_tests()


def test_the_suite_notices_another_framework(monkeypatch):
    """The NumPy adapter imports autograd; let that be a framework with a backend of its own."""
    monkeypatch.setitem(registry._registered, "autograd", NumpyBackend)
    test = "test_it_imports_no_other_framework"
    assert outcomes(NumpyHarness(), [test]) == {test: "failed"}


# -- the first step


@caught_by("test_a_loss_that_its_function_scales_is_refused", "test_value_and_grad_scales_once")
class RunsTheLossInAContextOfItsOwn(NumpyBackend):
    """As a thread without the caller's context does: nothing there knows that a step is running."""

    def gradients(self, *arguments):
        return Context().run(super().gradients, *arguments)


@caught_by(
    "test_a_step_without_a_policy_takes_that_of_the_decorated_model",
    "test_a_step_under_another_policy_than_the_decorated_model_s_is_refused",
    "test_a_step_is_refused_once_the_user_has_decorated_otherwise",
)
class ForgetsWhoDecorated(NumpyBackend):
    def decoration(self, model, optimizer):
        present = super().decoration(model, optimizer)
        return present and Decoration(*present)


@caught_by("test_a_schedule_may_come_to_the_decorated_model_s_policy")
class CannotUndecorate(NumpyBackend):
    def undecorate(self, model, optimizer):
        if self.decoration(model, optimizer) is not None:
            raise UnsupportedError


@caught_by("test_a_step_that_would_train_nothing_is_refused")
class TrainsNothingInSilence(NumpyBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        if optimizer is not None and not optimizer.parameters:
            return np.float32(0), None, []
        return super().gradients(loss_fn, model, batch, policy, factor, total, optimizer)


@caught_by("test_an_optimizer_of_a_replaced_layer_is_warned_of_once")
class GivesZerosForNoGradient(NumpyBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        found = super().gradients(loss_fn, model, batch, policy, factor, total, optimizer)
        arrays = self.parameters(optimizer or model)
        return *found[:2], [
            np.zeros_like(a) if g is None else g for a, g in zip(arrays, found[2], strict=True)
        ]


@caught_by("test_a_part_of_a_model_is_trained_without_a_word")
class WarnsOfWhatNoOptimizerHas(NumpyBackend):
    def step(self, optimizer, parameters, grads):
        if len(parameters) == 2:
            warnings.warn("a part of the model is not trained", AmpBridgeWarning, stacklevel=1)
        super().step(optimizer, parameters, grads)


# Broken backends for these are in tests/torch: here gradients are values, and nothing is compiled.
SHOWN_ON_TORCH = {
    "test_a_loss_scale_for_float16_parameters_without_masters_is_refused",
    "test_a_step_by_hand_of_float16_parameters_without_masters_is_refused",
    "test_bfloat16_parameters_without_masters_are_warned_of",
    "test_float16_parameters_of_a_policy_are_trained_with_a_loss_scale",
    "test_a_loss_that_the_framework_s_own_scaler_scales_is_refused",
    "test_the_framework_s_own_precision_is_warned_of_once",
    "test_the_framework_s_own_precision_may_be_that_of_the_policy",
    "test_a_forgotten_backward_is_an_error",
    "test_what_is_clipped_in_place_at_O2_is_what_steps",
    "test_a_loop_of_stored_gradients_at_O2_moves_the_masters",
    "test_another_decorated_model_makes_no_new_program",
    "test_minimize_is_step_and_update",
    "test_native_batches_give_what_numpy_batches_give",
    "test_step_skips_stored_gradients_that_overflowed",
    "test_step_takes_stored_gradients",
    "test_the_loss_function_is_compiled",
    "test_unscale_changes_stored_gradients_in_place",
    "test_value_and_grad_does_not_disturb_another_model",
}
# Tested below.
ABOUT_THE_SUITE = {"test_it_imports_no_other_framework", "test_the_suite_is_run_whole"}


def test_every_test_has_been_seen_to_fail():
    shown = {test for case in SABOTAGE.cases for test in case.values[1]}
    others = SHOWN_ON_TORCH | ABOUT_THE_SUITE
    assert set(names_of_tests()) - shown - others == set()
    assert others - set(names_of_tests()) == others & shown == set()


def test_a_test_may_not_be_left_out():
    class Incomplete(BackendConformance):
        test_O0_casts_nothing = None

    with pytest.raises(AssertionError, match=r"overridden without .*test_O0_casts_nothing"):
        Incomplete().test_the_suite_is_run_whole()


def test_a_test_may_be_expected_to_fail_for_a_reason():
    class Limited(BackendConformance):
        @pytest.mark.xfail(reason="no kernel for it")
        def test_O0_casts_nothing(self):
            super().test_O0_casts_nothing()

    Limited().test_the_suite_is_run_whole()


@pytest.mark.parametrize(
    "function, tried, others",
    [
        (Policy, options.OF_POLICY, {"level"}),
        (GradScaler, options.OF_SCALER, set()),
        (train_step, options.OF_STEP, {"loss_fn", "model", "optimizer"}),
        (Recipe, options.OF_RECIPE, {"policy"}),
        (decorate, options.OF_DECORATE, {"model", "optimizer", "policy"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_option_is_among_those_that_the_suite_tries(function, tried, others):
    assert {option.name for option in tried} | others == {*inspect.signature(function).parameters}


def test_no_setting_of_the_suite_s_round_trip_is_a_default():
    config, default = GradScaler(**scaler.SETTINGS, dynamic=False).config, ScalerConfig()
    assert [name for name in vars(default) if getattr(config, name) == vars(default)[name]] == []


def test_no_part_of_the_suite_hides_another_s_names():
    """It is put together from several classes; of two tests with one name only one would run."""
    names = [
        name
        for part in BackendConformance.__mro__[1:-1]
        for name in vars(part)
        if not name.startswith("__") and name not in ("harness", "pytestmark")
    ]
    assert len(names) == len(set(names))
