"""The suite must fail these backends: bugs that only a framework with tensors of its own can have.

The others stand in ``tests/conformance``, on NumPy, where they run faster.
"""

from contextlib import contextmanager

import pytest

from ampbridge.backend import INF
from ampbridge.testing import import_or_skip, outcomes

torch = import_or_skip("torch")
from ampbridge_torch.backend import TorchBackend  # noqa: E402
from ampbridge_torch.testing import TorchHarness  # noqa: E402

SABOTAGE = []


def caught_by(*tests):
    """Note a broken backend, with the tests that must fail for it."""

    def note(backend):
        SABOTAGE.append(pytest.param(backend, tests, id=backend.__name__))
        return backend

    return note


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


@caught_by("test_the_backward_pass_runs_outside_of_the_region")
class BackwardInsideTheRegion(TorchBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total):
        with self.autocast(policy):
            return super().gradients(loss_fn, model, batch, policy, factor, total)


@caught_by("test_value_and_grad_does_not_disturb_another_model")
class StoresGradientsOfEveryModelInTheLoss(TorchBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total):
        batch = [torch.as_tensor(x) for x in batch]
        with self.autocast(policy):
            loss, aux = loss_fn(model, *batch)
        loss.backward()
        return loss.detach(), aux, [p.grad for p in model.parameters()]


@caught_by("test_the_loss_is_a_detached_float32_scalar")
class KeepsTheLossOnItsGraph(TorchBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total):
        loss, aux, grads = super().gradients(loss_fn, model, batch, policy, factor, total)
        return loss.requires_grad_(), aux, grads


@caught_by("test_native_batches_give_what_numpy_batches_give")
class RoundsNativeBatches(TorchBackend):
    def gradients(self, loss_fn, model, batch, policy, factor, total):
        batch = [x.half().float() if isinstance(x, torch.Tensor) else x for x in batch]
        return super().gradients(loss_fn, model, batch, policy, factor, total)


@caught_by("test_unscale_changes_stored_gradients_in_place")
class UnscalesCopies(TorchBackend):
    def unscale(self, grads, scale):
        return super().unscale([g if g is None else g.clone() for g in grads], scale)


@caught_by(
    "test_unscale_divides_exactly_by_powers_of_two",
    "test_unscale_changes_stored_gradients_in_place",
    "test_step_takes_stored_gradients",
)
class UnscalesTwice(TorchBackend):
    def unscale(self, grads, scale):
        return super().unscale(super().unscale(grads, scale)[0], scale)


@caught_by(
    "test_stored_gradients_are_those_of_the_last_backward_pass", "test_step_takes_stored_gradients"
)
class ForgetsStoredGradients(TorchBackend):
    def stored_gradients(self, optimizer):
        return [torch.zeros_like(g) for g in super().stored_gradients(optimizer)]


@caught_by(
    "test_a_skipped_step_leaves_every_bit",
    "test_step_skips_stored_gradients_that_overflowed",
    "test_a_skipped_training_step_leaves_every_bit",
)
class StepsOnInf(TorchBackend):
    def apply(self, optimizer, parameters, grads, found):
        return super().apply(optimizer, parameters, grads, None)


@caught_by(
    "test_a_skipped_step_leaves_every_bit", "test_a_skipped_step_leaves_no_trace_in_the_next"
)
class StepsByZeroOnInf(TorchBackend):
    """Without reading the device: but momentum moves, and Adam counts."""

    def apply(self, optimizer, parameters, grads, found):
        if found is None or not found:
            return super().apply(optimizer, parameters, grads, found)
        kept = [p.detach().clone() for p in parameters]
        super().apply(optimizer, parameters, [torch.zeros_like(p) for p in parameters], None)
        with torch.no_grad():
            torch._foreach_copy_(list(parameters), kept)
        return False


@caught_by("test_minimize_is_step_and_update", "test_step_takes_stored_gradients")
class NeverSteps(TorchBackend):
    def apply(self, optimizer, parameters, grads, found):
        return super().apply(optimizer, parameters, grads, INF)


@caught_by("test_the_loss_function_is_compiled")
class IgnoresCompile(TorchBackend):
    def compile(self, build, loss_fn):
        return build(loss_fn)


class EagerTorchHarness(TorchHarness):
    """Leaves the compiled half of the tests out, which would take a minute."""

    compiles = False


@pytest.mark.parametrize("backend, tests", SABOTAGE)
def test_the_suite_fails_a_broken_backend(backend, tests):
    harness = (TorchHarness if backend is IgnoresCompile else EagerTorchHarness)(backend())
    assert outcomes(harness, tests) == dict.fromkeys(tests, "failed")


@pytest.fixture(autouse=True)
def _close_leaked_regions():
    yield
    torch.set_autocast_enabled("cpu", False)
    torch.set_autocast_dtype("cpu", torch.bfloat16)
