"""The one interface between the core and a framework.

An adapter does what pure Python cannot: cast ops, take gradients, check and step. It decides
nothing. What is common (the scale rule, when to skip, what a step returns) lives in the core and
takes a backend. An adapter holds no training state and is made without arguments; the core finds it
by entry point (group ``ampbridge.backends``), whose name is the framework's root module.

Native values (arrays, scalars, models, optimizers) pass through the core untouched: it never asks
what they are. A native scalar is whatever the framework can branch on later: a Python number where
the value is already on the host, a device tensor where reading it would wait for the device, a
symbolic tensor while a step is being traced.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from itertools import compress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from ampbridge.errors import ArgumentTypeError, UnsupportedError

if TYPE_CHECKING:
    import numpy.typing as npt

    from ampbridge.adapters.observation import Observer
    from ampbridge.checkpoints.weights import Weight
    from ampbridge.policies.oplists import Category
    from ampbridge.policies.policy import Policy
    from ampbridge.scaling.scale_rule import ScalerConfig, ScaleState

    NumpyArray: TypeAlias = npt.NDArray[Any]

Array: TypeAlias = Any
Scalar: TypeAlias = Any
Model: TypeAlias = Any
Optimizer: TypeAlias = Any
LossFn: TypeAlias = Callable[..., Any]
Program: TypeAlias = Callable[..., "StepOutput"]

Kind: TypeAlias = Literal["model", "optimizer", "loss", "scheduler"]

# The kind of an overflow, as a number so that it also travels through traced code.
# INF wins over NAN: an overflow makes both, and only NaN alone is beyond the scaler's reach.
FINITE, INF, NAN = 0, 1, 2


def worst_on_host(kinds: Iterable[int]) -> int:
    """INF before NAN before FINITE."""
    return min((kind for kind in kinds if kind != FINITE), default=FINITE)


class StepOutput(NamedTuple):
    """What one traced or eager step hands back, all native.

    ``grads`` are the gradients so far, where they are to be added to. ``scale`` is what the loss was
    multiplied by, ``after`` the scaler's state at the end; ``overflow`` is FINITE, INF or NAN;
    ``kinds`` is the same of each gradient, on request.
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


class Layer(NamedTuple):
    """A layer of a model: what the user calls it, and what it is.

    ``name`` is dotted, from the model downwards, and empty for the model itself. ``shapes`` are those
    of the parameters that it holds itself, not of its parts'.
    """

    name: str
    kind: str
    layer: Model
    shapes: Mapping[str, tuple[int, ...]]


def is_normalization(layer: Layer, known: tuple[type, ...] = ()) -> bool:
    """Whether the parameters that ``layer`` holds itself stay float32 at O2, as a normalization's do.

    It is of a class of the framework's own (``known``); or its class is called one ("LlamaRMSNorm",
    "LayerNorm2d") and it holds vectors alone: of no parameter is more than one axis longer than 1.
    """
    if isinstance(layer.layer, known):
        return True
    vectors = all(sum(size > 1 for size in shape) <= 1 for shape in layer.shapes.values())
    return vectors and "norm" in layer.kind.lower()


class Magnitude(NamedTuple):
    """The largest magnitude among the values of a parameter, which ``layer`` holds itself."""

    layer: Layer
    parameter: str
    largest: float


class Decoration(NamedTuple):
    """How a model is fitted to a policy.

    Attributes:
        policy: O1 or O2.
        kept: native layers that run in float32 as a whole, with all that is below them, and whose
            parameters stay float32.
        standalone: whether the model runs under the policy wherever it is called, and opens a
            region itself; else only inside of the caller's regions. Always at O2.
        save_dtype: the dtype of floating parameters in the model's own ``state_dict``; None for
            that in which the framework holds them.
        master_grad: whether gradients of low-precision parameters are held in float32.
    """

    policy: Policy
    kept: Sequence[Model] = ()
    standalone: bool = True
    save_dtype: str | None = None
    master_grad: bool = False


class OptimizerState(NamedTuple):
    """What an optimizer remembers: arrays by name, and plain JSON values."""

    slots: Mapping[str, NumpyArray]
    settings: Mapping[str, Any]


class Device(NamedTuple):
    """A device, as its framework names it: ``"cpu"``, ``"cuda:0"``, ``"gpu:0"``.

    Attributes:
        kind: "cpu", "gpu", "tpu", or the framework's own word for another kind.
        model: what its maker calls it.
        compute_capability: of NVIDIA's GPUs.
        bfloat16_instructions: what a CPU multiplies bfloat16 with, as far as the framework uses it.
    """

    name: str
    kind: str
    model: str
    compute_capability: tuple[int, int] | None = None
    bfloat16_instructions: tuple[str, ...] = ()


class Probe(NamedTuple):
    """What was tried on a device.

    Attributes:
        failures: for each dtype in which a small matrix product, or its gradient, could not be had:
            what the framework said.
        settings: the state of what changes precision or speed there ("TF32", "compiler"), in words.
    """

    failures: Mapping[str, str]
    settings: Mapping[str, str]


class Product(NamedTuple):
    """A matrix product that a layer does with its parameters.

    ``inputs`` and ``outputs`` are features or channels; a convolution sums over ``window`` places.
    """

    layer: str
    kind: str
    inputs: int
    outputs: int
    window: int = 1


class OpTreatment(NamedTuple):
    """What becomes of a canonical op under a policy, and who sees to it.

    Attributes:
        by: "native": the framework casts it, or leaves it alone, by itself; "ampbridge": its inputs
            are cast by us; "simulated": values are rounded around float32 kernels; "absent": no such
            op is called here, so the rule has no effect.
        category: the rule in force, which is another than the policy's where a spelling is shared;
            None of what is absent, and where the framework does not tell.
        dtype: of the values that it computes with; "inputs'" where those decide, "its parts'" where
            it is made of ops that have rules of their own.
        why: what is not plain from the rest.
    """

    by: Literal["native", "ampbridge", "simulated", "absent"]
    category: Category | None
    dtype: str
    why: str = ""


class FeatureTreatment(NamedTuple):
    """Who sees to a feature, and how; "refused" raises, "absent" is nothing that the framework has."""

    by: Literal["native", "ampbridge", "simulated", "refused", "absent"]
    why: str


class Explanation(NamedTuple):
    """What a backend does with a policy on one device: with every canonical op, and beyond ops."""

    device: str
    ops: Mapping[str, OpTreatment]
    features: Mapping[str, FeatureTreatment]


class ScaleStore(Protocol):
    """Where the scaler's state lives: on the host, in device tensors, in traced variables."""

    @abstractmethod
    def read(self) -> ScaleState:
        """The state as native scalars. Does not wait for a device."""

    @abstractmethod
    def write(self, state: ScaleState) -> None:
        """Set the state from Python numbers."""

    @abstractmethod
    def update(self, overflow: Scalar, config: ScalerConfig) -> None:
        """State <- next_state(state, overflow). Does not wait for a device."""


class Backend(Protocol):
    """Everything the core asks of a framework.

    ``name`` is the framework's root module. ``compiles_by_default`` says whether its users expect
    a training step to be compiled. ``examples`` are what a user writes to make a "model", an
    "optimizer", and a "loss_fn" of a loss object of the framework's, for hints.
    """

    name: str
    compiles_by_default: bool
    examples: Mapping[str, str]

    @abstractmethod
    def kind(self, obj: object) -> Kind | None:
        """What ``obj`` is to this framework, if it is one of these.

        A "loss" is a loss object of the framework's own, a "scheduler" one of its rates'.
        """

    # -- precision

    @abstractmethod
    def autocast(self, policy: Policy) -> AbstractContextManager[None]:
        """A region in which ops run as ``policy`` says; O0 is a region of plain float32.

        Regions nest (the inner policy alone counts), may be re-entered, are left intact by
        exceptions, and are not seen by other threads.
        """

    @abstractmethod
    def execution(self, policy: Policy) -> Literal["native", "simulated"]:
        """How this device runs ``policy``: by kernels of its dtype, or by rounding around float32's.

        Where ``policy.execution`` is "auto", the faster of those that are faithful.

        Raises:
            UnsupportedError: if ``policy.execution`` asks for what there is not.
        """

    @abstractmethod
    def cast(self, x: Array, dtype: str) -> Array:
        """``x`` in ``dtype``; float64 and what is not floating point as it is. Differentiable."""

    # -- models fitted to a policy

    @abstractmethod
    def layers(self, model: Model) -> list[Layer]:
        """The model and every layer below it, each once, under its first name; outer before inner."""

    @abstractmethod
    def decorate(self, model: Model, optimizer: Optimizer | None, decoration: Decoration) -> None:
        """Fit an undecorated model, and its optimizer, to a policy, in place.

        While an O1 or O2 region is open, kept layers run in float32 and the floating-point outputs
        of a call of the model come in ``policy.output_dtype``. At O2 besides:

        * parameters are in ``policy.dtype``, or are read so; those of kept layers and of
          normalizations (``is_normalization``) stay float32, and so do all buffers;
        * floating-point inputs of a call of the model (float64 apart) are cast to ``policy.dtype``;
        * ``optimizer`` updates float32 masters; with ``master_weights=False`` the low-precision
          parameters themselves, so that an update under half a unit in the last place is lost.

        What was decorated may be trained by ``apply`` and by the user's own loops. Changes nothing if
        it raises.

        Raises:
            UnsupportedError: for what this framework or this model cannot be given.
        """

    @abstractmethod
    def undecorate(self, model: Model, optimizer: Optimizer | None) -> None:
        """Take back all that ``decorate`` did; parameters keep their masters' values, bit by bit."""

    def undecorated(
        self, model: Model, optimizer: Optimizer | None
    ) -> AbstractContextManager[None]:
        """Take the decoration of ``model``, which has one, back for a while.

        By default by ``undecorate`` and ``decorate``.
        """
        return _undecorated(self, model, optimizer)

    @abstractmethod
    def decoration(self, model: Model, optimizer: Optimizer | None) -> Decoration | None:
        """What the model, together with that optimizer, is decorated with; None if it is not."""

    @abstractmethod
    def largest_magnitudes(self, model: Model, kept: Sequence[Model]) -> list[Magnitude]:
        """Of each float32 parameter of an undecorated model that O2 would cast, with ``kept`` kept.

        Each comes once, at the first layer that holds it; without those that have no values yet.
        Waits for the device, once.
        """

    def copied(
        self, model: Model, optimizer: Optimizer, memo: dict[int, Any]
    ) -> tuple[Model, Optimizer]:
        """Deep copies of a model and of an optimizer that goes on training the copy.

        By default those of ``copy.deepcopy``, with its ``memo``. Raises whatever these classes do
        that cannot be copied.
        """
        pair: tuple[Model, Optimizer] = deepcopy((model, optimizer), memo)
        return pair

    # -- gradients

    @abstractmethod
    def parameters(self, owner: Model | Optimizer) -> list[Array]:
        """The trainable parameters of a model or an optimizer, in a fixed order.

        What both of them hold is one object.

        Raises:
            CallOrderError: for an optimizer that has not been told any yet.
        """

    def low_parameters(self, model: Model) -> list[str]:
        """The names of trainable parameters of an undecorated model that are in 16 bits by themselves."""
        is_low = ["float16" in str(parameter.dtype) for parameter in self.parameters(model)]
        names = self.parameter_names(model) if any(is_low) else []
        return list(compress(names, is_low))

    @abstractmethod
    def parameter_names(self, model: Model) -> list[str]:
        """A dotted name for each of ``parameters(model)``, in their order."""

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

        ``loss_fn`` returns ``(loss, aux)``, the loss a scalar. Arrays in ``batch``, also those in
        containers (``ampbridge.adapters.nested``), may be NumPy's.
        The region spans the forward pass alone. The loss is taken to float32 before it is
        multiplied: 65536 is already infinite in float16.

        Args:
            factor: multiplies the loss; a native scalar, or None for 1.
            total: gradients of earlier micro-batches, to be added to; None for the first.
            optimizer: whose parameters the gradients are of; None for the model's.

        Returns:
            The loss (float32, without ``factor``), ``aux``, both cut off from the computation, and
            the sum of ``total`` and the new gradients, in the order of ``parameters(optimizer)``, or
            of ``parameters(model)`` without one, and in float32 also where a parameter is in low
            precision; None where the loss does not depend on a parameter.

        Raises:
            ArgumentError: where it depends on none of them (``arguments.check_dependence``).
        """

    @abstractmethod
    def stored_gradients(self, optimizer: Optimizer) -> list[Array]:
        """The gradients that the framework keeps beside the optimizer's parameters.

        16-bit ones are in float32 from now on, so that what the caller clips in place is what steps.

        Raises:
            UnsupportedError: where gradients are values that the caller holds.
        """

    # -- from gradients to parameters

    @abstractmethod
    def unscale(self, grads: Sequence[Array], scale: Scalar) -> tuple[list[Array], Scalar]:
        """Divide by ``scale`` in one pass that also looks for inf and NaN; may work in place.

        With None for ``scale`` it only looks, and values stay as they are.

        Returns:
            The gradients in float32 or wider, and FINITE, INF or NAN as a native scalar. After
            INF or NAN the gradients' values are undefined.
        """

    def unscale_for(
        self, optimizer: Optimizer, grads: Sequence[Array], scale: Scalar
    ) -> tuple[list[Array], Scalar]:
        """``unscale`` of the gradients that ``optimizer`` is to be stepped with.

        The overflow may be read here, and is an int then, where the decision to step would wait
        for it anyway. By default it is ``unscale``.
        """
        del optimizer
        return self.unscale(grads, scale)

    def worst(self, found: Sequence[Scalar]) -> Scalar:
        """The overflow of several lots of gradients together: INF before NAN before FINITE.

        By default, of Python numbers.
        """
        return worst_on_host(found)

    def agree(self, found: Scalar, optimizer: Optimizer | None) -> Scalar:
        """The overflow on any rank, INF before NAN, where the ranks of an engine see different gradients.

        Every rank calls it once a step, overflow or not. By default there is but one rank, or the
        gradients have been reduced already, and with them the overflow.

        Args:
            optimizer: whose gradients were checked; None where they came as values.
        """
        del optimizer
        return found

    def mean_loss(self, loss: Array, model: Model) -> Array:
        """The mean of the losses of the ranks that train ``model`` together; each of them calls it.

        By default there is but one.
        """
        del model
        return loss

    @abstractmethod
    def add(self, total: Sequence[Array], grads: Sequence[Array]) -> list[Array]:
        """The sums of two lists of gradients, None where both are."""

    @abstractmethod
    def clip(self, grads: Sequence[Array], max_norm: float) -> tuple[list[Array], Scalar]:
        """Scale ``grads`` so that their joint 2-norm is at most ``max_norm``; the norm before."""

    @abstractmethod
    def apply(
        self,
        optimizer: Optimizer,
        parameters: Sequence[Array],
        grads: Sequence[Array],
        found: Scalar,
    ) -> Scalar:
        """Step ``optimizer`` unless ``found`` says INF or NAN; None means unchecked.

        A skipped step changes no parameter, no slot and no counter of the optimizer. Where
        ``parameters`` are low-precision copies of an optimizer's masters, ``grads`` step these.

        Returns:
            Whether it was stepped, as a native scalar.
        """

    # -- compiled steps, and what a step remembers

    @abstractmethod
    def compile(self, build: Callable[[LossFn], Program], loss_fn: LossFn) -> Program:
        """``build(loss_fn)``, compiled where this framework compiles: the loss, or the whole step.

        The compiled program follows the policy that is given at each call. ``total`` (a list of
        gradients or None) and the batch are its arguments: ``program(policy, final, total, batch)``.

        Raises:
            UnsupportedError: where there is no compiler.
        """

    def on_replicas(self, program: Program, model: Model) -> Program:
        """``program``, called once and run on each replica of ``model`` that this process holds.

        What the replicas agree on is handed back once, the loss as their mean. By default a process
        holds one.
        """
        del model
        return program

    def replica(self) -> int:
        """Which of the replicas in this process calls; 0 where there is but one."""
        return 0

    @abstractmethod
    def scale_store(self, state: ScaleState, like: Any) -> ScaleStore:
        """A place for the scaler's state, on the device of ``like`` (a model, loss or gradient)."""

    # -- what there is to compute with, and what becomes of a policy there

    @abstractmethod
    def devices(self) -> list[Device]:
        """The devices of this framework here, first the one that a model would be trained on."""

    @abstractmethod
    def probe(self, device: Device) -> Probe:
        """Try float32, float16 and bfloat16 on ``device``: what it does, not what it says."""

    @abstractmethod
    def products(self, model: Model) -> list[Product]:
        """The matrix products of the layers that are known to do one, named as in ``layers``."""

    @abstractmethod
    def explain(self, policy: Policy) -> Explanation:
        """What a region of ``policy`` would do on the first of ``devices``, by the rules that it uses.

        Raises:
            UnsupportedError: for a policy that a region would refuse.
        """

    # -- saving and loading

    @abstractmethod
    def weights(self, model: Model) -> list[Weight]:
        """Parameters and buffers of a model, described; in its order, names without doubles."""

    @abstractmethod
    def read_weights(self, model: Model) -> dict[str, NumpyArray]:
        """The values of ``weights(model)`` by name: copies, of low-precision ones the masters."""

    @abstractmethod
    def write_weights(self, model: Model, values: Mapping[str, NumpyArray]) -> None:
        """Set ``weights(model)`` in place, masters and low-precision copies alike."""

    @abstractmethod
    def read_optimizer(self, optimizer: Optimizer, model: Model) -> OptimizerState:
        """Slots and counters as copies, under the names of the model's weights; settings that change
        during a run (rates); and, among the slots, the values of the optimizer's parameters that the
        model does not have, under ``outside.name_of`` their places.

        Raises:
            UnsupportedError: for an optimizer whose state is more than that.
        """

    @abstractmethod
    def write_optimizer(self, optimizer: Optimizer, model: Model, state: OptimizerState) -> None:
        """Set what ``read_optimizer`` read, bit by bit; the optimizer may not have stepped yet.

        Raises:
            StateError: if it does not fit, a slot is missing or of another shape; the optimizer may be
                half changed then.
        """

    def on_one_rank(self, model: Model, action: Callable[[], None]) -> None:
        """Call ``action``, which writes files, on one of the ranks that train ``model`` together.

        Every one of these ranks calls it, and none goes on before ``action`` is done. By default there
        is but one.

        Raises:
            StateError: on the others, if ``action`` failed; on its own rank, its own error.
        """
        del model
        action()

    # -- the framework's own scaler

    @abstractmethod
    def native_scaler(self, state: Mapping[str, Any], optimizer: Optimizer | None) -> Any:
        """The framework's own scaler in the state that ``GradScaler.state_dict`` describes.

        Raises:
            ArgumentError: if it wraps an optimizer, and none was given.
            UnsupportedError: where there is none.
        """

    @abstractmethod
    def native_scaler_state(self, scaler: Any) -> Mapping[str, Any]:
        """The state of the framework's own scaler, in a form that ``GradScaler.load_state_dict`` reads.

        Raises:
            ArgumentTypeError: if it is no scaler.
        """

    # -- seeing what runs

    def observe(
        self, model: Model, observer: Observer, *, gradients: bool
    ) -> AbstractContextManager[None]:
        """Report to ``observer`` each op that runs inside, and its gradients when they are taken later.

        Opened in the forward pass, within its region: ``loss_fn`` wrapped by it is what ``gradients``
        is called with. Inside, everything runs eagerly, also what the user has compiled. What is
        computed is the same to the bit. Other threads are not observed. Closed, by an exception too,
        it leaves nothing behind but the hooks of a backward pass that is still to come.

        Args:
            model: whose layers' names are reported.
            gradients: whether gradients are reported; without, none of their hooks is set.

        Raises:
            UnsupportedError: where ops cannot be seen, as by default.
        """
        del model, observer, gradients
        msg = f"{self.name}: this adapter cannot observe ops.\n"
        raise UnsupportedError(msg + "Hint: amp.lens.census(...) with a model of another framework")

    def to_numpy(self, x: Array) -> NumpyArray:
        """The values on the host, as float32 or, if they are of that, float64. Waits for the device.

        Raises:
            UnsupportedError: for a backend that cannot be observed either, as by default.
        """
        del x
        msg = f"{self.name}: this adapter shows no values.\n"
        raise UnsupportedError(msg + "Hint: amp.lens.ranges(...) with a model of another framework")

    def restored(self, model: Model) -> AbstractContextManager[None]:
        """Give back afterwards, also by an exception, what passes of an undecorated model change.

        Bit by bit, where it has changed: parameters; buffers of every dtype, saved or not, each the
        same object; training modes; and where random numbers are drawn from, that is the
        framework's own generators and those that layers hold. By default the weights alone. Waits
        for the device.
        """
        return _restored(self, model)

    def peak_memory(self, action: Callable[[], None]) -> int | None:
        """Run ``action``; the most bytes of arrays that it held at once beyond what was held before.

        None where the framework does not tell, as by default.
        """
        action()
        return None

    # -- the framework's own words for a policy

    def native_policy(self, policy: Policy) -> Any:
        """What this framework itself has for ``policy``, of which nothing is beyond it.

        Raises:
            UnsupportedError: where there is no such thing, as by default.
        """
        msg = f"{self.name} has no precision objects of its own.\nHint: amp.autocast({policy!r})"
        raise UnsupportedError(msg)

    def policy_of_native(self, native: Any) -> Policy:
        """The policy that the framework's own object stands for.

        Raises:
            ArgumentTypeError: if it is none, as by default.
            UnsupportedError: if no policy says the same.
        """
        msg = f"{type(native).__name__} of {self.name} says nothing of precision.\n"
        raise ArgumentTypeError(msg + "Hint: Policy.from_native(torch.autocast('cuda'))")


@contextmanager
def _undecorated(backend: Backend, model: Model, optimizer: Optimizer | None) -> Iterator[None]:
    present = backend.decoration(model, None)
    assert present is not None
    backend.undecorate(model, optimizer)
    try:
        yield
    finally:
        backend.undecorate(model, optimizer)  # what was decorated inside
        backend.decorate(model, optimizer, present)


@contextmanager
def _restored(backend: Backend, model: Model) -> Iterator[None]:
    values = backend.read_weights(model)
    try:
        yield
    finally:
        backend.write_weights(model, values)
