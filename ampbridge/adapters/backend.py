"""The one interface between the core and a framework.

An adapter does what needs the framework: it casts ops, computes gradients, checks them and steps.
It decides nothing. What all frameworks share (the scale rule, when to skip, the result of a step) is
in the core, as functions that take a backend. An adapter holds no training state, and its class
takes no arguments. The core finds it by entry point (group ``ampbridge.backends``); the name of the
entry is the framework's root module.

Native values (arrays, scalars, models, optimizers) pass through the core unchanged: it never asks
for their types. A native scalar is a value on which the framework can branch later: a Python number
if the value is already on the host, a device tensor if reading it would wait for the device, or a
symbolic tensor while a step is being traced.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from ampbridge.adapters.process_setting import no_tf32
from ampbridge.adapters.roles import cannot
from ampbridge.adapters.roles.native_objects import NativeObjects
from ampbridge.adapters.roles.observing import Observing
from ampbridge.adapters.roles.probing import Probing
from ampbridge.adapters.roles.saving import Saving
from ampbridge.errors import ArgumentError, UnsupportedError

if TYPE_CHECKING:
    from ampbridge.policies.policy import Policy
    from ampbridge.scaling.scale_rule import ScalerConfig, ScaleState

# Names for native values in annotations.
Array: TypeAlias = Any
Scalar: TypeAlias = Any
Model: TypeAlias = Any
Optimizer: TypeAlias = Any
LossFn: TypeAlias = Callable[..., Any]

Program: TypeAlias = Callable[..., "StepOutput"]

BoundGradients: TypeAlias = Callable[
    [Sequence[Any], Scalar, "Sequence[Array] | None"],
    tuple[Array, Any, list[Array], list[Array]],
]
"""Of ``batch``, ``factor`` and ``total``: the loss, aux, the parameters and their gradients.

See ``Backend.gradients``.
"""

Kind: TypeAlias = Literal["model", "optimizer", "loss", "scheduler"]

# The kind of an overflow, as a number so that it also travels through traced code.
# INF wins over NAN: an overflow makes both, and only NaN alone is beyond the scaler's reach.
FINITE, INF, NAN = 0, 1, 2


def worst_on_host(kinds: Iterable[int]) -> int:
    """The worst of ``kinds``: INF before NAN before FINITE."""
    return min((kind for kind in kinds if kind != FINITE), default=FINITE)


def sums(total: Sequence[Array], grads: Sequence[Array]) -> list[Array]:
    """See ``Backend.add``, of arrays that ``+`` adds."""
    pairs = zip(total, grads, strict=True)
    return [b if a is None else a if b is None else a + b for a, b in pairs]


class StepOutput(NamedTuple):
    """The native results of one traced or eager step.

    ``grads`` are the accumulated gradients, if more micro-batches follow. ``scale`` is the factor of
    the loss, and ``after`` the scaler's state at the end. ``overflow`` is FINITE, INF or NAN;
    ``kinds``, on request, has the same for each gradient. ``raised`` came once the optimizer had
    stepped.
    """

    loss: Array
    aux: Any
    grads: Sequence[Array] | None = None
    scale: Scalar = None
    after: ScaleState | None = None
    overflow: Scalar = None
    applied: Scalar = None
    grad_norm: Scalar = None
    kinds: Sequence[Scalar] | None = None
    raised: Exception | None = None


class RaisedAfterStep(Exception):
    """``Backend.apply`` raises it if a hook raised ``error`` after the optimizer had stepped."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class Layer(NamedTuple):
    """A layer of a model.

    ``name`` is the user's dotted name, from the model downwards; it is empty for the model itself.
    ``shapes`` are those of the layer's own parameters, without the parameters of its sublayers.
    """

    name: str
    kind: str
    layer: Model
    shapes: Mapping[str, tuple[int, ...]]


def is_normalization(layer: Layer, known: tuple[type, ...] = ()) -> bool:
    """Whether the own parameters of ``layer`` stay float32 at O2, as those of a normalization do.

    This is so if its class is one of the framework's normalizations (``known``). It is also so if its
    class name contains "norm" ("LlamaRMSNorm", "LayerNorm2d") and its parameters are all vectors: none
    has more than one axis longer than 1.
    """
    if isinstance(layer.layer, known):
        return True
    vectors = all(sum(size > 1 for size in shape) <= 1 for shape in layer.shapes.values())
    return vectors and "norm" in layer.kind.lower()


class Magnitude(NamedTuple):
    """The largest magnitude among the values of one of ``layer``'s own parameters.

    ``is_rounded`` says whether a 16-bit dtype does not hold all of them.
    """

    layer: Layer
    parameter: str
    largest: float
    is_rounded: bool = False


class OwnPrecisionNotice(Protocol):
    """Who is told of a framework's own mixed precision."""

    def __call__(self, what: str, dtype: str, counts: bool) -> None:
        """It is on.

        Args:
            what: the code that turned it on.
            dtype: "float16" or "bfloat16".
            counts: whether it comes before the step's policy.
        """


class Decoration(NamedTuple):
    """How a model is decorated for a policy.

    Attributes:
        policy: O1 or O2.
        kept: native layers that run completely in float32, including their sublayers, and whose
            parameters stay float32.
        standalone: whether the model opens a region itself and so runs under the policy wherever it
            is called. Otherwise it follows the policy only inside of the caller's regions. Always
            true at O2.
        save_dtype: the dtype of floating parameters in the model's own ``state_dict``; None for the
            dtype in which the framework stores them.
        master_grad: whether gradients of low-precision parameters are stored in float32.
    """

    policy: Policy
    kept: Sequence[Model] = ()
    standalone: bool = True
    save_dtype: str | None = None
    master_grad: bool = False


class ScaleStore(Protocol):
    """Where the scaler's state lives: on the host, in device tensors, in traced variables."""

    @abstractmethod
    def read(self) -> ScaleState:
        """The state as native scalars. Does not wait for a device."""

    @abstractmethod
    def write(self, state: ScaleState) -> None:
        """Set the state from Python numbers."""

    @abstractmethod
    def update(self, overflow: Scalar, config: ScalerConfig) -> ScaleState:
        """State <- next_state(state, overflow), which is returned. Does not wait for a device."""


class Backend(Observing, Saving, Probing, NativeObjects, Protocol):
    """The interface between the core and a framework.

    ``name`` is the framework's root module. ``compiles_by_default`` is true if the framework's users
    expect a compiled training step. ``examples`` are code for hints: how to create a "model" and an
    "optimizer", how to have a "float32 model", and how to turn one of the framework's loss objects into
    a "loss_fn". ``masters`` and ``slots`` are the values of these fields of a ``Policy`` that
    ``decorate`` follows; the core refuses others. ``updates_in_16_bits`` is true if optimizers see the 16-bit
    weights and gradients alone where a policy has no masters and its slots are "float32"; they keep
    slots in 16 bits then. ``float32_switch`` says in words what ``float32`` sets.
    """

    name: str
    compiles_by_default: bool
    examples: Mapping[str, str]
    masters: Collection[str | None] = ("float32", None)
    slots: Collection[str] = ("float32",)
    updates_in_16_bits: bool = False
    float32_switch: str = "float32 is IEEE's"

    @abstractmethod
    def kind(self, obj: object) -> Kind | None:
        """The kind of ``obj`` in this framework, or None.

        A "loss" is a loss object of the framework, a "scheduler" one of its learning-rate schedulers.
        """

    def moves_rates_of(self, scheduler: object, optimizer: Optimizer) -> bool:
        """Whether ``scheduler`` moves the learning rates of ``optimizer``; true if nobody can tell.

        By default it is one with an ``optimizer``, as torch's are. Optimizers that wrap another one
        share its groups, which hold the rates.
        """
        theirs, ours = (
            {id(group) for group in getattr(each, "param_groups", ())}
            for each in (getattr(scheduler, "optimizer", None), optimizer)
        )
        return not theirs or not ours or not theirs.isdisjoint(ours)

    def acquaint(self, model: Model, optimizer: Optimizer) -> None:
        """Note that ``optimizer`` trains ``model``: ``train_step`` and ``decorate`` call it first.

        The default is for frameworks whose optimizers hold their parameters.

        Raises:
            ArgumentError: if the optimizer was made for another model.
        """
        del model, optimizer

    # -- precision

    @abstractmethod
    def autocast(self, policy: Policy) -> AbstractContextManager[None]:
        """An autocast region in which ops run under ``policy``; an O0 region is plain float32.

        Regions nest (only the inner policy applies) and may be re-entered. Leaving one by an exception
        restores the state before it. A region does not affect other threads, but for ``float32``.
        """

    def execution(self, policy: Policy) -> Literal["native", "simulated"]:
        """How this device runs ``policy``: with 16-bit kernels, or simulated with float32 kernels.

        If ``policy.execution`` is "auto", it is the faster one that gives the right numbers. The default
        is for an adapter that simulates nothing.

        Raises:
            UnsupportedError: if this device does not support ``policy.execution``.
        """
        if policy.execution == "simulated":
            raise cannot(self.name, "simulate low precision", "execution='auto'")
        return "native"

    def float32(self, policy: Policy) -> AbstractContextManager[None]:
        """A block in which float32 means what ``policy.float32`` says, which is not "default".

        A step runs in it, with its backward pass and its update; a region of ``policy`` opens it too. The
        default is for frameworks in which float32 is IEEE's and nothing else.

        Raises:
            UnsupportedError: if this framework or its tracer does not support it.
        """
        if policy.float32 == "tf32":
            raise no_tf32(self.name)
        return nullcontext()

    @abstractmethod
    def cast(self, x: Array, dtype: str) -> Array:
        """``x`` in ``dtype``; float64 and what is not floating point as it is. Differentiable."""

    def noticing_own_precision(
        self, model: Model, notice: OwnPrecisionNotice
    ) -> AbstractContextManager[None]:
        """A block in which a step runs for the first time, and gives ``notice``.

        ``notice`` is called of the framework's own mixed precision, as it is met: a policy of layers,
        a region around the step, a region that the loss or the model opens. The framework's own loss
        scaler is refused inside, by ``scaled_once.check_that_nobody_else_scales``. The default is for
        frameworks without any.
        """
        del model, notice
        return nullcontext()

    def noting_kept_calls(self) -> AbstractContextManager[Callable[[], Collection[int] | None]]:
        """A block in which the calls of kept layers, and of those below them, are noted.

        The function that it gives returns the ids of the layers that were called, or None if some of
        the calls may not have been seen: in compiled code. The default sees none.
        """
        return nullcontext(lambda: None)

    # -- models fitted to a policy

    @abstractmethod
    def layers(self, model: Model) -> list[Layer]:
        """The model and every layer below it, each once, under its first name; outer before inner."""

    @abstractmethod
    def decorate(self, model: Model, optimizer: Optimizer | None, decoration: Decoration) -> None:
        """Prepare an undecorated model, and its optimizer, for a policy, in place.

        While an O1 or O2 region is open, kept layers run in float32, and a call of the model returns
        its floating-point outputs in ``policy.output_dtype``. At O2 also:

        * parameters are in ``policy.dtype``, or are read in it; those of kept layers and of
          normalizations (``is_normalization``) stay float32, and so do all buffers;
        * a call of the model leaves its inputs as they are: the ops that take them follow their rules;
        * ``optimizer`` updates float32 masters. With ``masters=None`` it updates the low-precision
          parameters, so that an update under half a unit in the last place is lost. For others, and
          for ``slots``, see ``ampbridge.adapters.low_storage``.

        A decorated model may be trained by ``apply`` and by the user's own loops. If this method
        raises an error, it has changed nothing.

        Raises:
            UnsupportedError: if this framework or this model does not support the policy.
        """

    def serve(self, model: Model, optimizer: Optimizer) -> None:
        """Prepare one more optimizer for the decoration that ``model`` has.

        If this method raises an error, it has changed nothing. The default decorates anew, which is for
        decorations that leave optimizers as they are.
        """
        present = self.decoration(model, None)
        assert present is not None
        self.undecorate(model, optimizer)
        try:
            self.decorate(model, optimizer, present)
        except BaseException:
            self.decorate(model, None, present)
            raise

    def served(self, model: Model) -> list[Optimizer]:
        """The optimizers that ``model`` is decorated together with, as far as the decoration knows.

        The default knows none.
        """
        del model
        return []

    @abstractmethod
    def undecorate(self, model: Model, optimizer: Optimizer | None) -> None:
        """Undo ``decorate``; the parameters get the exact values of their masters.

        Slots of ``optimizer``, and of those that are ``served``, are float32 again.
        """

    def undecorated(
        self, model: Model, optimizer: Optimizer | None
    ) -> AbstractContextManager[None]:
        """Undo the decoration of ``model`` inside of a block, and restore it afterwards.

        ``model`` is decorated. The default uses ``undecorate`` and ``decorate``.

        Raises:
            ArgumentError: if that needs the optimizer, which is missing.
        """
        return _undecorated(self, model, optimizer)

    @abstractmethod
    def decoration(self, model: Model, optimizer: Optimizer | None) -> Decoration | None:
        """The decoration of the model together with that optimizer; None if it is not decorated."""

    def largest_magnitudes(
        self, model: Model, kept: Sequence[Model], dtype: str
    ) -> list[Magnitude]:
        """Of each float32 parameter of an undecorated model that O2 in ``dtype`` would cast.

        Without those of ``kept`` and those that have no values yet. Each comes once, at the first layer
        that holds it. Waits for the device, once. The default looks at none: then nobody is warned of
        what float16 does not hold, nor of the digits that trained weights lose without masters.
        """
        del model, kept, dtype
        return []

    def copied(
        self, model: Model, optimizer: Optimizer, memo: dict[int, Any]
    ) -> tuple[Model, Optimizer]:
        """Deep copies of a model and of an optimizer that goes on training the copy.

        The default uses ``copy.deepcopy``, with its ``memo``. If a class cannot be copied, its own
        exception is raised.
        """
        pair: tuple[Model, Optimizer] = deepcopy((model, optimizer), memo)
        return pair

    # -- gradients

    @abstractmethod
    def parameters(self, owner: Model | Optimizer) -> list[Array]:
        """The trainable parameters of a model or an optimizer, in a fixed order.

        A parameter of both is the same object in both lists.

        Raises:
            CallOrderError: for an optimizer that has no parameters yet.
        """

    def low_parameters(
        self, parameters: Sequence[Array], optimizer: Optimizer | None = None
    ) -> list[Array]:
        """Those of ``parameters`` that are 16-bit by the user's own doing, not by a decoration.

        The default is for frameworks in which decorating changes no dtype.

        Args:
            optimizer: without those that it has masters of by itself.
        """
        del optimizer
        low = {dtype for dtype in {p.dtype for p in parameters} if "float16" in str(dtype)}
        return [parameter for parameter in parameters if parameter.dtype in low] if low else []

    def parameter_names(self, model: Model) -> list[str]:
        """A dotted name for each of ``parameters(model)``, in their order; by default their numbers."""
        return [str(number) for number in range(len(self.parameters(model)))]

    @abstractmethod
    def gradients(
        self,
        loss_fn: LossFn,
        model: Model,
        batch: Sequence[Any],
        policy: Policy,
        factor: Scalar,
        total: Sequence[Array] | None,
        optimizer: Optimizer | None = None,
    ) -> tuple[Array, Any, list[Array]]:
        """Run ``loss_fn(model, *batch)`` under ``policy`` and differentiate ``factor * loss``.

        ``loss_fn`` returns ``(loss, aux)``; the loss is a scalar. Arrays in ``batch``, also those in
        containers (``ampbridge.adapters.nested``), may be NumPy's.
        The region covers only the forward pass. The loss is cast to float32 before it is
        multiplied: 65536 is already infinite in float16.

        Args:
            factor: multiplies the loss; a native scalar, or None for 1.
            total: the sum of the gradients of earlier micro-batches; None for the first.
            optimizer: the gradients are those of its parameters; None for the model's parameters.

        Returns:
            The loss (float32, without ``factor``) and ``aux``, both detached. Then the sum of ``total``
            and the new gradients, in the order of ``parameters(optimizer)``, or of
            ``parameters(model)`` without an optimizer. Gradients are float32, also those of
            low-precision parameters, and None if the loss does not depend on the parameter.

        Raises:
            ArgumentError: if it depends on none of them (``arguments.check_dependence``).
        """

    def bind(
        self, loss_fn: LossFn, model: Model, policy: Policy, optimizer: Optimizer
    ) -> BoundGradients:
        """``gradients`` of many batches: what cannot change between them may be settled here.

        A step binds each of its policies once. The default settles nothing.
        """

        def gradients(
            batch: Sequence[Any], factor: Scalar, total: Sequence[Array] | None
        ) -> tuple[Array, Any, list[Array], list[Array]]:
            loss, aux, grads = self.gradients(
                loss_fn, model, batch, policy, factor, total, optimizer
            )
            return loss, aux, self.parameters(optimizer), grads

        return gradients

    def stored_gradients(self, optimizer: Optimizer) -> list[Array]:
        """The gradients that the framework stores in the optimizer's parameters.

        This turns 16-bit gradients into float32, so that the optimizer uses the gradients that the
        caller clips in place.

        Raises:
            UnsupportedError: if this framework returns gradients as values; this is the default.
        """
        raise UnsupportedError(
            f"{self.name} keeps no gradients beside the parameters of {type(optimizer).__name__}; they "
            "are values.\n"
            "Hint: loss, grads = amp.value_and_grad(loss_fn, model, x, y, scaler=scaler); "
            "scaler.step(optimizer, grads)"
        )

    # -- from gradients to parameters

    @abstractmethod
    def unscale(self, grads: Sequence[Array], scale: Scalar) -> tuple[list[Array], Scalar]:
        """Divide by ``scale`` in one pass that also checks for inf and NaN; may work in place.

        With None for ``scale`` it only checks, and does not change the values.

        Returns:
            The gradients in float32 or wider, and FINITE, INF or NAN as a native scalar. After
            INF or NAN the gradients' values are undefined.
        """

    def unscale_for(
        self, optimizer: Optimizer | None, grads: Sequence[Array], scale: Scalar
    ) -> tuple[list[Array], Scalar]:
        """``unscale`` for the gradients of the next step of ``optimizer``, with the overflow of all ranks.

        Every rank calls it once a step, whether or not it overflowed. Where ranks have different
        gradients, their overflows are combined as ``worst`` does. If the decision to step would wait for
        the overflow anyway, it may be read here; then it is an int. The default is for a single rank, and
        for engines that have reduced the gradients, and so the overflow, already.

        Args:
            optimizer: None for gradients as values.
        """
        del optimizer
        return self.unscale(grads, scale)

    def worst(self, found: Sequence[Scalar]) -> Scalar:
        """The combined overflow of several sets of gradients: INF before NAN before FINITE.

        The default takes Python numbers.
        """
        return worst_on_host(found)

    def mean_loss(self, loss: Array, model: Model) -> Array:
        """The mean loss of the ranks that train ``model`` together; each of them calls it.

        The default is for a single rank.
        """
        del model
        return loss

    def add(self, total: Sequence[Array], grads: Sequence[Array]) -> list[Array]:
        """The sums of two lists of gradients; a sum is None if both gradients are.

        The default adds with ``+``.
        """
        return sums(total, grads)

    @abstractmethod
    def clip(self, grads: Sequence[Array], max_norm: float) -> tuple[list[Array], Scalar]:
        """Scale ``grads`` so that their joint 2-norm is at most ``max_norm``; also return the old norm."""

    @abstractmethod
    def clip_values(self, grads: Sequence[Array], limit: float) -> list[Array]:
        """``grads`` with each number at ``-limit`` at least and at ``limit`` at most.

        Rows that a sparse gradient holds several times count by their sum.
        """

    @abstractmethod
    def step(
        self, optimizer: Optimizer, parameters: Sequence[Array], grads: Sequence[Array]
    ) -> None:
        """Step ``optimizer`` with ``grads``, which are those of ``parameters``.

        If ``parameters`` are low-precision copies of masters, the step updates the masters.

        Raises:
            RaisedAfterStep: for an exception after the update.
        """

    def step_unless(
        self,
        optimizer: Optimizer,
        parameters: Sequence[Array],
        grads: Sequence[Array],
        overflow: Scalar,
    ) -> Scalar:
        """``step``, unless ``overflow``, which is no Python number, is INF or NAN.

        The default reads it. Traced code, and optimizers whose own kernel decides on the device, need
        not wait for it.

        Returns:
            Whether the optimizer was stepped, as a native scalar.

        Raises: as ``step``.
        """
        applied = int(overflow) == FINITE
        if applied:
            self.step(optimizer, parameters, grads)
        return applied

    # -- compiled steps, and what a step remembers

    def compile(self, build: Callable[[LossFn], Program], loss_fn: LossFn) -> Program:
        """``build(loss_fn)``, with the part compiled that this framework compiles: loss or whole step.

        The compiled program follows the policy of each call. It takes ``total`` (a list of gradients
        or None) and the batch as arguments: ``program(policy, final, total, batch)``.

        Raises:
            UnsupportedError: if there is no compiler; this is the default.
        """
        del build
        raise UnsupportedError(
            f"compile=True with {getattr(loss_fn, '__name__', repr(loss_fn))}: {self.name} runs op by op "
            "and has no compiler.\n"
            "Hint: amp.train_step(..., compile='auto') compiles where the framework can."
        )

    def on_replicas(self, program: Program, model: Model) -> Program:
        """A function that runs ``program`` on each replica of ``model`` in this process.

        It returns the results on which the replicas agree once, and the mean of their losses. The
        default is for a single replica.
        """
        del model
        return program

    def replica(self) -> int:
        """The index of the running replica in this process; 0 if there is only one."""
        return 0

    def scale_store(self, state: ScaleState, like: Any) -> ScaleStore | None:
        """A store for the scaler's state, on the device of ``like`` (a model, loss or gradient).

        None for the host, where it is at first; this is the default.
        """
        del state, like
        return None


def float32_of(policy: Policy, backend: Backend) -> AbstractContextManager[None]:
    """A block in which float32 means what ``policy`` says, backward passes and updates included."""
    return nullcontext() if policy.float32 == "default" else backend.float32(policy)


@contextmanager
def _undecorated(backend: Backend, model: Model, optimizer: Optimizer | None) -> Iterator[None]:
    present = backend.decoration(model, None)
    assert present is not None
    policy, optimizers = present.policy, backend.served(model) or [optimizer]
    if optimizers[0] is None and (policy.masters is None or policy.slots != "float32"):
        raise ArgumentError(
            f"The model is decorated with {policy!r}. Without masters, or with low slots, a model is "
            "decorated together with its optimizer.\n"
            "Hint: with amp.undecorated(model, optimizer): ..."
        )
    backend.undecorate(model, optimizer)
    try:
        yield
    finally:
        backend.undecorate(model, optimizer)  # what was decorated inside
        decorate_with(backend, model, optimizers, present)


def decorate_with(
    backend: Backend, model: Model, optimizers: Sequence[Optimizer | None], decoration: Decoration
) -> None:
    """Decorate an undecorated model for all ``optimizers``; a None if there is none."""
    backend.decorate(model, optimizers[0], decoration)
    for other in optimizers[1:]:
        backend.serve(model, other)
