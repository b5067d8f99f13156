"""The suite must fail these backends: bugs that only a framework with tensors of its own can have.

The others stand in ``tests/conformance``, on NumPy, where they run faster.
"""

from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import pytest
from broken_backends import BrokenBackends

from ampbridge.adapters.backend import Backend
from ampbridge_testing import import_or_skip, outcomes

torch = import_or_skip("torch")
from ampbridge_torch.backend import TorchBackend  # noqa: E402
from ampbridge_torch.step import gradients  # noqa: E402
from ampbridge_torch.testing import TorchHarness  # noqa: E402

SABOTAGE = BrokenBackends()
caught_by = SABOTAGE.caught_by


@caught_by(
    "test_an_exception_leaves_the_region",
    "test_an_exception_leaves_the_outer_region_intact",
    "test_the_framework_is_left_as_it_was",
)
class LeaksAutocastAfterAnException(TorchBackend):
    @contextmanager
    def autocast(self, policy):
        before = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        torch.set_autocast_enabled("cpu", policy.level != "O0")
        torch.set_autocast_dtype("cpu", getattr(torch, policy.dtype.replace("float32", "bfloat16")))
        yield
        torch.set_autocast_enabled("cpu", before[0])
        torch.set_autocast_dtype("cpu", before[1])


@caught_by(
    "test_a_denied_op_runs_in_float32_on_low_inputs",
    "test_a_custom_deny_is_honoured",
    "test_O0_inside_O1_takes_low_arrays_to_float32",
)
class HasTheListsOfTorchOnCpu(TorchBackend):
    """Plain ``torch.autocast("cpu")``, which lists other ops than on CUDA."""

    def autocast(self, policy):
        dtype = torch.float16 if policy.dtype == "float16" else torch.bfloat16
        return torch.autocast("cpu", dtype, enabled=policy.level != "O0")


@caught_by(
    "test_the_framework_s_own_precision_is_warned_of_once",
    "test_a_loss_that_the_framework_s_own_scaler_scales_is_refused",
)
class SeesNoAutocastOfItsUser(TorchBackend):
    def noticing_own_precision(self, model, notice):
        return nullcontext()


@caught_by("test_the_framework_s_own_precision_may_be_that_of_the_policy")
class WarnsOfEveryPrecision(TorchBackend):
    def noticing_own_precision(self, model, notice):
        def always(what, dtype, counts):
            notice(what, {"float16": "bfloat16", "bfloat16": "float16"}[dtype], counts)

        return super().noticing_own_precision(model, always)


@caught_by(
    "test_a_loss_scale_for_float16_parameters_without_masters_is_refused",
    "test_a_step_by_hand_of_float16_parameters_without_masters_is_refused",
    "test_bfloat16_parameters_without_masters_are_warned_of",
)
class SeesNoLowParameters(TorchBackend):
    def low_parameters(self, parameters, optimizer=None):
        return []


@caught_by("test_float16_parameters_of_a_policy_are_trained_with_a_loss_scale")
class TakesCastParametersForTheUsersOwn(TorchBackend):
    low_parameters = Backend.low_parameters


@caught_by("test_the_backward_pass_runs_outside_of_the_region")
class BackwardInsideTheRegion(TorchBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        def run_inside(function, *arguments):
            with self.autocast(policy):
                return function(*arguments)

        with patch.object(gradients, "run_outside", run_inside):
            return super().gradients(loss_fn, model, batch, policy, factor, total, optimizer)


@caught_by("test_value_and_grad_does_not_disturb_another_model")
class StoresGradientsOfEveryModelInTheLoss(TorchBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        batch = [torch.as_tensor(x) for x in batch]
        with self.autocast(policy):
            loss, aux = loss_fn(model, *batch)
        loss.backward()
        return loss.detach(), aux, [p.grad for p in model.parameters()]


@caught_by("test_the_loss_is_a_detached_float32_scalar")
class KeepsTheLossOnItsGraph(TorchBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        loss, aux, grads = super().gradients(
            loss_fn, model, batch, policy, factor, total, optimizer
        )
        return loss.requires_grad_(), aux, grads


@caught_by("test_native_batches_give_what_numpy_batches_give")
class RoundsNativeBatches(TorchBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        batch = [x.half().float() if isinstance(x, torch.Tensor) else x for x in batch]
        return super().gradients(loss_fn, model, batch, policy, factor, total, optimizer)


@caught_by("test_unscale_changes_stored_gradients_in_place")
class UnscalesCopies(TorchBackend):
    def unscale_for(self, optimizer, grads, scale):
        copies = [g if g is None else g.clone() for g in grads]
        return super().unscale_for(optimizer, copies, scale)


@caught_by(
    "test_unscale_divides_exactly_by_powers_of_two",
    "test_unscale_changes_stored_gradients_in_place",
    "test_step_takes_stored_gradients",
)
class UnscalesTwice(TorchBackend):
    def unscale(self, grads, scale):
        return super().unscale(super().unscale(grads, scale)[0], scale)

    def unscale_for(self, optimizer, grads, scale):
        return self.unscale(grads, scale)


@caught_by("test_a_forgotten_backward_is_an_error")
class MakesUpStoredGradients(TorchBackend):
    """So that weights stand still, and nobody hears of it."""

    def stored_gradients(self, optimizer):
        pairs = zip(self.parameters(optimizer), super().stored_gradients(optimizer), strict=True)
        return [torch.zeros_like(p) if g is None else g for p, g in pairs]


@caught_by("test_what_is_clipped_in_place_at_O2_is_what_steps")
class WidensStoredGradientsAside(TorchBackend):
    """As unscaling did once: what is beside the parameters is not what steps."""

    def stored_gradients(self, optimizer):
        return [g if g is None else g.clone() for g in super().stored_gradients(optimizer)]


@caught_by(
    "test_stored_gradients_are_those_of_the_last_backward_pass", "test_step_takes_stored_gradients"
)
class ForgetsStoredGradients(TorchBackend):
    def stored_gradients(self, optimizer):
        return [torch.zeros_like(g) for g in super().stored_gradients(optimizer)]


class DecidesOnDevice(TorchBackend):
    """Whether there was an overflow is a tensor, as it is for optimizers that ask it themselves."""

    def unscale(self, grads, scale):
        return self.unscale_for(None, grads, scale)

    def unscale_for(self, optimizer, grads, scale):
        unscaled, found = super().unscale_for(optimizer, grads, scale)
        return unscaled, torch.tensor(found)


@caught_by(
    "test_a_skipped_step_leaves_every_bit",
    "test_step_skips_stored_gradients_that_overflowed",
    "test_a_skipped_training_step_leaves_every_bit",
)
class StepsOnInf(DecidesOnDevice):
    def step_unless(self, optimizer, parameters, grads, found):
        self.step(optimizer, parameters, grads)
        return True


@caught_by(
    "test_a_skipped_step_leaves_every_bit", "test_a_skipped_step_leaves_no_trace_in_the_next"
)
class StepsByZeroOnInf(DecidesOnDevice):
    """Without reading the device: but momentum moves, and Adam counts."""

    def step_unless(self, optimizer, parameters, grads, found):
        if not found:
            return super().step_unless(optimizer, parameters, grads, found)
        kept = [p.detach().clone() for p in parameters]
        self.step(optimizer, parameters, [torch.zeros_like(p) for p in parameters])
        with torch.no_grad():
            torch._foreach_copy_(list(parameters), kept)
        return False


@caught_by("test_minimize_is_step_and_update", "test_step_takes_stored_gradients")
class NeverSteps(TorchBackend):
    def step(self, optimizer, parameters, grads):
        pass


@caught_by("test_the_loss_function_is_compiled")
class IgnoresCompile(TorchBackend):
    def compile(self, build, loss_fn):
        return build(loss_fn)


@caught_by("test_another_decorated_model_makes_no_new_program")
class CompilesForEachStep(TorchBackend):
    def bind(self, loss_fn, model, policy, optimizer):
        gradients = super().bind(loss_fn, model, policy, optimizer)

        def compiled_anew(batch, factor, total):
            torch.compiler.reset()
            return gradients(batch, factor, total)

        return compiled_anew


# -- decorated models


class Decorates(TorchBackend):
    """Shares the plumbing of what follows: ``changed`` sees each decoration."""

    def decorate(self, model, optimizer, decoration):
        super().decorate(model, optimizer, self.changed(decoration))


def with_policy(decoration, **fields):
    return decoration._replace(policy=decoration.policy.replace(**fields))


@caught_by(
    "test_200_updates_under_half_an_ulp_move_the_master_weights",
    "test_the_user_s_own_steps_at_O2_move_the_masters",
    "test_a_loop_of_stored_gradients_at_O2_moves_the_masters",
)
class HasNoMasterWeights(Decorates):
    def changed(self, decoration):
        return with_policy(decoration, masters=None)


@caught_by("test_a_step_at_O2_shows_in_the_next_forward_pass")
class NeverWritesMastersBack(TorchBackend):
    def step(self, optimizer, parameters, grads):
        kept = [p.detach().clone() for p in parameters]
        super().step(optimizer, parameters, grads)
        with torch.no_grad():
            torch._foreach_copy_(list(parameters), kept)


@caught_by(
    "test_a_layer_is_kept_by_its_name_or_a_pattern",
    "test_layers_are_kept_by_their_class",
    "test_a_step_keeps_layers",
    "test_a_kept_layer_s_gradients_are_not_rounded",
)
class CastsKeptLayers(Decorates):
    def changed(self, decoration):
        return decoration._replace(kept=())


@caught_by("test_outputs_come_in_output_dtype", "test_low_outputs_come_in_float32")
class LeavesOutputsIn16Bit(Decorates):
    def changed(self, decoration):
        return with_policy(decoration, output_dtype=decoration.policy.dtype)


@caught_by(
    "test_a_schedule_takes_a_built_model_from_level_to_level",
    "test_a_schedule_by_loss_changes_what_runs",
    "test_a_schedule_by_skips_changes_what_runs",
)
class FollowsItsFirstDecorationForEver(TorchBackend):
    """As a layer does that was built under it."""

    def decorate(self, model, optimizer, decoration):
        if super().decoration(model, optimizer) is None:
            super().decorate(model, optimizer, decoration)

    def undecorate(self, model, optimizer):
        pass

    def decoration(self, model, optimizer):
        return None


class EagerTorchHarness(TorchHarness):
    """Leaves the compiled half of the tests out, which would take a minute."""

    compiles = False


@pytest.mark.parametrize("backend, tests", SABOTAGE.cases)
def test_the_suite_fails_a_broken_backend(backend, tests):
    compiles = backend in (IgnoresCompile, CompilesForEachStep)
    harness = (TorchHarness if compiles else EagerTorchHarness)(backend())
    assert outcomes(harness, tests) == dict.fromkeys(tests, "failed")


@pytest.fixture(autouse=True)
def _close_leaked_regions():
    yield
    torch.set_autocast_enabled("cpu", False)
    torch.set_autocast_dtype("cpu", torch.bfloat16)
