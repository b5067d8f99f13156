"""A model under the lens: passes under one policy after another, and nothing of it left behind."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

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
"""What other policies are held against."""


class Pass(NamedTuple):
    """One forward and backward pass, on the host.

    Attributes:
        loss: without the loss scale.
        gradients: by the parameters' names, multiplied by the loss scale; without those that the
            loss does not depend on.
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
        CallOrderError: for a model that ``amp.decorate`` has fitted to a policy: the lens tries
            several.
    """

    def __init__(self, loss_fn: LossFn, model: Model) -> None:
        self.backend: Backend = backend_of_pass(loss_fn, model)
        self.model = model
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
        """The model fitted to ``policy``; afterwards it and all generators are what they were.

        So every pass draws the same random numbers, and meets the same running statistics.

        Raises:
            CallOrderError: for a model that makes its weights in its first call, which is to come yet.
            PolicyError: if an entry of ``policy.keep`` matches no layer.
            UnsupportedError: for what this backend refuses.
        """
        known = {weight.name for weight in self.backend.weights(self.model)}
        with self._undecorated(), self.backend.restored(self.model), restored_generators():
            fit_to(self.backend, self.model, None, for_steps(self.backend, self.model, policy))
            try:
                yield
            finally:
                self.backend.undecorate(self.model, None)
                self._check_made(known)

    @contextmanager
    def _undecorated(self) -> Iterator[None]:
        if self.backend.decoration(self.model, None) is None:
            yield
        else:
            with self.backend.undecorated(self.model, None):
                yield

    def _check_made(self, known: Collection[str]) -> None:
        made = [w.name for w in self.backend.weights(self.model) if w.name not in known]
        if made:
            msg = (
                f"The model made its weights only now ({made[0]}, ...): what they were before its first "
                "call cannot be given back.\nHint: model(x) once, before the lens looks at it."
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
            observer: who is told of each op.
            gradients: whether the observer is told of gradients, too.
            shown_as_under: functions are shown whole that this policy lists; ``policy`` by default.
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


@contextmanager
def restored_generators() -> Iterator[None]:
    """Give back where Python's and NumPy's global generators stood, which layers of any framework use."""
    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def checked_scale(scale: float) -> float:
    """A loss scale as a Python number.

    Raises:
        ArgumentError: for what is no power of two from 2**-126 to 2**127: only those move exponents
            and leave the digits of every gradient as they are.
    """
    exponent = np.log2(float(scale)) if scale > 0 else np.nan
    if not (exponent == np.round(exponent) and -126 <= exponent <= 127):
        msg = f"Passed scale={scale!r}; allowed are powers of two from 2**-126 to 2**127.\n"
        raise ArgumentError(msg + "Hint: scale=2.0**16")
    return float(scale)
