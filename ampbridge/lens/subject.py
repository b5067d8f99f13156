"""A model under the lens: it runs passes under several policies, and is restored afterwards."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from ampbridge.adapters.arguments import backend_of_pass
from ampbridge.adapters.backend import Array, Backend, LossFn, Model
from ampbridge.adapters.observation import Observer
from ampbridge.errors import ArgumentError, CallOrderError
from ampbridge.policies.function_ops import shown_whole
from ampbridge.policies.policy import Policy
from ampbridge.training.decorate import fit_to, for_steps
from ampbridge.training.step_program import returning_aux

NumpyArray = npt.NDArray[Any]

FLOAT32 = Policy("O0")
"""The baseline for other policies."""


class Pass(NamedTuple):
    """One forward and backward pass, on the host.

    Attributes:
        loss: the loss without the loss scale.
        gradients: the gradients by the parameters' names, multiplied by the loss scale; parameters
            on which the loss does not depend are left out.
    """

    loss: float
    gradients: dict[str, NumpyArray]

    @property
    def arrays(self) -> list[NumpyArray]:
        """The loss and the gradients."""
        return [np.asarray(self.loss), *self.gradients.values()]


class Subject:
    """A model and its loss.

    Raises:
        CallOrderError: for a model that ``amp.decorate`` has decorated, because the lens tries several
            policies.
    """

    def __init__(self, loss_fn: LossFn, model: Model) -> None:
        self.backend: Backend = backend_of_pass(loss_fn, model)
        self.model = model
        self._call = loss_fn
        self._loss_fn = returning_aux(loss_fn)
        present = self.backend.decoration(model, None)
        if present is not None and present.standalone:
            msg = (
                f"The lens takes models as you made them; this one is decorated with {present.policy!r}.\n"
                f"Hint: amp.undecorate(model, optimizer); lens.census(..., policy={str(present.policy)!r})"
            )
            raise CallOrderError(msg)

    @contextmanager
    def under(self, policy: Policy) -> Iterator[None]:
        """Decorate the model for ``policy``; afterwards restore it and all random generators.

        So every pass draws the same random numbers, and starts with the same running statistics.

        Raises:
            CallOrderError: for a model that creates its weights in its first call, if that is yet to
                come.
            PolicyError: if an entry of ``policy.keep`` matches no layer.
            UnsupportedError: if this backend does not support the policy.
        """
        known = {weight.name for weight in self.backend.weights(self.model)}
        with self._undecorated(), self.backend.restored(self.model), restored_generators():
            fit_to(self.backend, self.model, None, for_steps(self.backend, self.model, policy))
            try:
                yield
            finally:
                self.backend.undecorate(self.model, None)
                self._check_no_new_weights(known)

    @contextmanager
    def with_weights(self, values: Mapping[str, NumpyArray]) -> Iterator[None]:
        """Give the model these weights inside, by name; it keeps the others. Afterwards restore it."""
        with self._undecorated(), self.backend.restored(self.model):
            self.backend.write_weights(
                self.model, {**self.backend.read_weights(self.model), **values}
            )
            yield

    @contextmanager
    def _undecorated(self) -> Iterator[None]:
        if self.backend.decoration(self.model, None) is None:
            yield
        else:
            with self.backend.undecorated(self.model, None):
                yield

    def _check_no_new_weights(self, known: Collection[str]) -> None:
        created = [w.name for w in self.backend.weights(self.model) if w.name not in known]
        if created:
            msg = (
                f"The model created its weights only now ({created[0]}, ...): the lens cannot restore "
                "a model from before its first call.\nHint: model(x) once, then lens.census(...)"
            )
            raise CallOrderError(msg)

    def run(
        self,
        batch: Sequence[Any],
        policy: Policy,
        scale: float = 1.0,
        observer: Observer | None = None,
        *,
        gradients: bool = True,
        shown_as_under: Policy | None = None,
    ) -> Pass:
        """One pass under ``policy`` with the loss multiplied by ``scale``.

        Args:
            observer: it receives each op.
            gradients: whether the observer also receives gradients.
            shown_as_under: a policy; functions in its lists are shown as one op. ``policy`` by default.
        """

        def observed(model: Model, *inputs: Any) -> tuple[Array, Any]:
            with (
                nullcontext()
                if observer is None
                else self.backend.observe(model, observer, gradients=gradients)
            ):
                loss, aux = self._loss_fn(model, *inputs)
                return loss, aux

        with self.under(policy), shown_whole(shown_as_under or policy):
            loss, _, grads = self.backend.gradients(
                observed, self.model, batch, policy, scale, None
            )
            names = self.backend.parameter_names(self.model)
            found = {
                name: self.backend.to_numpy(grad)
                for name, grad in zip(names, grads, strict=True)
                if grad is not None
            }
            return Pass(float(self.backend.to_numpy(loss)), found)

    def forward(self, batch: Sequence[Any], policy: Policy, observer: Observer) -> None:
        """The forward pass alone, as ``run`` has it. What ``loss_fn`` returns is not looked at."""

        def observed(model: Model, *inputs: Any) -> NoReturn:
            with self.backend.observe(model, observer, gradients=False):
                self._call(model, *inputs)
            raise _ForwardIsOver

        with self.under(policy), shown_whole(policy), suppress(_ForwardIsOver):
            self.backend.gradients(observed, self.model, batch, policy, 1.0, None)


class _ForwardIsOver(Exception):
    """Ends ``Backend.gradients`` where the backward pass would begin."""


@contextmanager
def restored_generators() -> Iterator[None]:
    """Restore Python's and NumPy's global random generators, which layers of any framework may use."""
    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def checked_scale(scale: float) -> float:
    """A loss scale as a Python number.

    Raises:
        ArgumentError: unless it is a power of two from 2**-126 to 2**127: only these shift exponents
            without changing the digits of a gradient.
    """
    exponent = np.log2(float(scale)) if scale > 0 else np.nan
    if not (exponent == np.round(exponent) and -126 <= exponent <= 127):
        msg = f"Passed scale={scale!r}; allowed are powers of two from 2**-126 to 2**127.\n"
        raise ArgumentError(msg + "Hint: scale=2.0**16")
    return float(scale)
