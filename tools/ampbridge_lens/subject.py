"""A model under the lens: it runs passes under several policies, and is restored afterwards."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from math import nan
from textwrap import shorten
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from ampbridge.adapters.arguments import backend_of_pass, check_that_a_batch_is_spread
from ampbridge.adapters.backend import Array, Backend, LossFn, Model, float32_of
from ampbridge.adapters.nested import leaves, map_leaves
from ampbridge.adapters.observation import Observer
from ampbridge.errors import AmpBridgeError, ArgumentError, CallOrderError
from ampbridge.neutral.native import native_of_backend
from ampbridge.policies.function_ops import shown_whole
from ampbridge.policies.policy import Policy
from ampbridge.training.decorate import fit_to, for_steps
from ampbridge.training.micro_batch import returning_aux

NumpyArray = npt.NDArray[Any]

WIDE = ("float32", "float64")

FLOAT32 = Policy("O0")
"""The baseline for other policies."""


class Pass(NamedTuple):
    """One forward and backward pass, on the host.

    Attributes:
        loss: the loss without the loss scale.
        gradients: the gradients by the parameters' names, multiplied by the loss scale; parameters
            on which the loss does not depend are left out.
        raised: the exception that ended the pass, in words; then the loss is NaN. Empty if none did.
    """

    loss: float
    gradients: dict[str, NumpyArray]
    raised: str = ""

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
        self.call = loss_fn
        self._loss_fn = returning_aux(loss_fn)
        present = self.backend.decoration(model, None)
        if present is not None and present.standalone:
            msg = (
                f"The lens takes models as you made them; this one is decorated with {present.policy!r}.\n"
                f"Hint: amp.undecorate(model, optimizer), and pass the lens policy={present.policy!r}"
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
        float32 = float32_of(policy, self.backend)
        with float32, self._undecorated(), self.backend.restored(self.model), restored_generators():
            wanted = for_steps(self.backend, self.model, policy)
            fit_to(self.backend, self.model, None, wanted, for_good=False)
            try:
                yield
            finally:
                self.backend.undecorate(self.model, None)
                weights = self.backend.weights(self.model)
                created = [weight.name for weight in weights if weight.name not in known]
                if created:
                    msg = (
                        f"The model created its weights only now ({created[0]}, ...): the lens cannot "
                        "restore a model from before its first call.\n"
                        "Hint: model(x) once, before the lens looks"
                    )
                    raise CallOrderError(msg)

    def float_inputs(self, batch: Sequence[Any]) -> list[NumpyArray]:
        """The arrays of float32 and float64 in a batch, on the host."""
        floats = [x for x in leaves(tuple(batch)) if str(getattr(x, "dtype", "")).endswith(WIDE)]
        return [x if isinstance(x, np.ndarray) else self.backend.to_numpy(x) for x in floats]

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

        An exception that is not raised in float32 ends the pass, and is in what it returns: checks of
        the user's (an assert, a distribution's) raise where low precision breaks what they demand.

        Args:
            observer: it receives each op.
            gradients: whether the observer also receives gradients.
            shown_as_under: a policy; functions in its lists are shown as one op. ``policy`` by default.
        """

        def observed(model: Model, *inputs: Any) -> tuple[Array, Any]:
            with self._observed(model, observer, gradients=gradients):
                loss, aux = self._loss_fn(model, inputs, {})
                return loss, aux

        try:
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
        except Exception as error:
            self._check_sound_in_float32(error, batch, policy, partial(self.run, batch, FLOAT32))
            return Pass(nan, {}, in_words(error))

    def forward(self, batch: Sequence[Any], policy: Policy, observer: Observer | None) -> str:
        """The forward pass alone, as ``run`` has it. What ``loss_fn`` returns is not looked at.

        Returns ``Pass.raised``.
        """

        def observed(model: Model, *inputs: Any) -> NoReturn:
            with self._observed(model, observer, gradients=False):
                self.call(model, *inputs)
            raise _ForwardIsOver

        try:
            with self.under(policy), shown_whole(policy):
                self.backend.gradients(observed, self.model, batch, policy, 1.0, None)
        except _ForwardIsOver:
            return ""
        except Exception as error:
            in_float32 = partial(self.forward, batch, FLOAT32, None)
            self._check_sound_in_float32(error, batch, policy, in_float32)
            return in_words(error)
        raise AssertionError("a backend ran the backward pass of no loss")

    def outputs(
        self, batch: Sequence[Any], policy: Policy, observer: Observer | None = None
    ) -> Any:
        """What the function returns under ``policy``, in a forward pass that nothing is differentiated in.

        So parameters may be frozen. Arrays of NumPy's become native as the trainable parameters are.
        """
        like = next(iter(self.backend.parameters(self.model)), None)
        if like is not None:
            native = native_of_backend(self.backend)
            batch = map_leaves(
                lambda x: native.tensor(x, like) if isinstance(x, np.ndarray) else x, tuple(batch)
            )
        try:
            with (
                self.under(policy),
                shown_whole(policy),
                self.backend.autocast(policy),
                self._observed(self.model, observer, gradients=False),
            ):
                return self.call(self.model, *batch)
        except Exception as error:
            check_that_a_batch_is_spread(self.call, batch, {}, error, "lens.parity(a, b, *batch)")
            raise

    def _observed(
        self, model: Model, observer: Observer | None, *, gradients: bool
    ) -> AbstractContextManager[None]:
        if observer is None:
            return nullcontext()
        return self.backend.observe(model, observer, gradients=gradients)

    def _check_sound_in_float32(
        self,
        error: Exception,
        batch: Sequence[Any],
        policy: Policy,
        in_float32: Callable[[], object],
    ) -> None:
        """Raise the exception of a pass again if it is ours, or if float32 raises one as well."""
        check_that_a_batch_is_spread(self.call, batch, {}, error, "loss_fn, model, *batch")
        if isinstance(error, AmpBridgeError) or policy == FLOAT32:
            raise error
        try:
            in_float32()
        except Exception:
            raise error from None


def in_words(error: Exception) -> str:
    """Type and message of an exception, in one short line."""
    return shorten(f"{type(error).__name__}: {error}", 200)


def in_layer(op: str, layer: str) -> str:
    """An op and its layer, as reports name them."""
    return f"{op}, {layer or 'the model itself'}"


def ended(raised: str) -> str:
    """A report's remark about a pass that an exception ended."""
    return f"The pass ended there, under the policy and not in float32, with {raised!r}."


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
