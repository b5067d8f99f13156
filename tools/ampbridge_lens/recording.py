"""Recording: the values and gradients of every op in one pass, to be aligned with another's.

full <- a pass in float32; low <- a pass under the policy
for each of the two:
    disturbed <- the same pass, each parameter and input shifted by +-epsilon of itself, within its range
                 (whole numbers stay; the inputs stay if loss_fn raises for shifted ones)
    noise     <- the largest change of each array: what rounding may have made of it by then

A disturbance by one rounding makes every later rounding fall otherwise, so the noise contains what
depth, long sums and cancellation make of rounding errors.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from math import floor, log2
from os import PathLike
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ampbridge.adapters.backend import Backend, LossFn, Model
from ampbridge.adapters.nested import map_leaves
from ampbridge.adapters.observation import OpCall
from ampbridge.checkpoints import atomic_files
from ampbridge.checkpoints.weights import Weight, match_weights
from ampbridge.errors import StateError, WriteError
from ampbridge.errors.foreign_names import told_of
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import single
from ampbridge.reports.printing import Table, TabularReport
from ampbridge_lens.closeness import EPSILON, apart, largest
from ampbridge_lens.op_arrays import ArrayObserver, Key, OpArray
from ampbridge_lens.subject import FLOAT32, Subject, checked_scale, ended

NumpyArray = npt.NDArray[Any]

LARGEST_GRADIENT = 2.0**14
"""What the loss scale brings the largest gradient to, unless a scale is passed."""

VERSION = 1


class Values(NamedTuple):
    """One array of a pass; gradients are without the loss scale.

    Attributes:
        dtype: the one that it had under the policy.
        low: the values under the policy, as float32 or float64.
        full: the values of the pass in float32; None if that pass had no such array.
        low_noise, full_noise: the largest change in a disturbed pass, over the largest value.
    """

    dtype: str
    low: NumpyArray
    full: NumpyArray | None
    low_noise: float
    full_noise: float


class RecordedOp(NamedTuple):
    """One call of an op, with its arrays.

    Attributes:
        op, layer, dtype: as ``lens.census`` has them.
        arrived: the gradients of outputs, by the output's place.
        left: what the op adds to the gradients of its inputs, by the input's place.
    """

    op: str
    layer: str
    dtype: str
    inputs: tuple[Values, ...]
    outputs: tuple[Values, ...]
    arrived: Mapping[int, Values]
    left: Mapping[int, Values]


class Arrival(NamedTuple):
    """A gradient of the backward pass: that of ``ops[op]``'s output or input ``place``."""

    op: int
    side: Literal["arrived", "left"]
    place: int


@dataclass(frozen=True)
class Recording(TabularReport):
    """All values and gradients of one pass; prints as a summary.

    Attributes:
        scale: the loss scale of the pass under the policy.
        ops: in the order of the forward pass.
        backward: the gradients in the order in which they came.
        gradients: those of the parameters, by name.
        weights: parameters and buffers, described; ``values`` has their values.
        raised: the exception that ended the pass under the policy; empty if none did. Then there is
            what came before it.
    """

    backend: str
    policy: Policy
    scale: float
    loss: Values
    ops: tuple[RecordedOp, ...]
    backward: tuple[Arrival, ...]
    gradients: Mapping[str, Values]
    weights: tuple[Weight, ...]
    values: Mapping[str, NumpyArray]
    raised: str = ""

    def to_dict(self) -> dict[str, Any]:
        """What it is of, as plain JSON values, without the arrays."""
        ops = [{"op": op.op, "layer": op.layer, "dtype": op.dtype} for op in self.ops]
        return {
            "backend": self.backend,
            "policy": self.policy.to_dict(),
            "scale": self.scale,
            "loss": float(self.loss.low),
            "ops": ops,
            "weights": [weight.name for weight in self.weights],
            "raised": self.raised,
        }

    def table(self) -> Table:
        """As it is printed."""
        rows = (
            ("ops", str(len(self.ops))),
            ("gradients", str(len(self.backward))),
            ("parameters", str(len(self.gradients))),
            ("loss", f"{float(self.loss.low):.6g}"),
        )
        remarks = (ended(self.raised),) if self.raised else ()
        return Table(f"{self.policy!r} on {self.backend}", ("recorded", ""), rows, remarks)

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to a file, an ``npz`` archive, whole or not at all.

        Raises:
            WriteError: if that cannot be.
        """
        path = atomic_files.path_of(path, _HINT)
        described, arrays = _described(self)
        content = io.BytesIO()
        text = np.frombuffer(described.encode(), np.uint8)
        np.savez(content, allow_pickle=False, recording=text, **arrays)
        try:
            atomic_files.write(path, content.getbuffer())
        except OSError as error:
            msg = f"The recording {path:.200} cannot be written: {error.strerror or error}.\n"
            raise WriteError(
                msg + "Hint: a path in a folder that exists and that you may write to"
            ) from error

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Recording:
        """Read what ``save`` wrote, in any process and with any framework.

        Raises:
            StateError: if it is not there, or is not a recording.
        """
        path = atomic_files.path_of(path, _HINT)
        try:
            atomic_files.check_regular(path)
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            return _restored(json.loads(arrays.pop("recording").tobytes()), arrays)
        except _NOT_A_RECORDING as e:
            msg = f"{path:.200} is not a recording: {type(e).__name__}: {e!s:.100}.\n"
            raise StateError(f"{msg}Hint: {_HINT}") from e


@told_of("lens.record")
def record(
    loss_fn: LossFn,
    model: Model,
    *batch: Any,
    policy: str | Policy = "O1",
    weights: Recording | None = None,
    scale: float | None = None,
) -> Recording:
    """Record all values and gradients of a pass, for ``lens.align``.

        lens.record(loss_fn, model, x, y, policy="O1").save("torch.npz")

    Takes four passes, or two at O0. All arrays that the ops see are kept in memory, each once.

    Args:
        weights: a recording whose weights the model has during the passes; they are paired as
            ``load_weights`` pairs them. Afterwards the model has its own again.
        scale: the loss scale of the pass under the policy; None for the one that brings the largest
            gradient to about 2**14. The recorded gradients are without it.

    Raises:
        ArgumentError: for a scale that is not a power of two.
        CallOrderError: if the model is decorated already.
        StateError: if a weight has no partner in ``weights``.
        UnsupportedError: for a policy that this backend refuses, or a backend that cannot observe ops.
    """
    parsed, subject = single(policy), Subject(loss_fn, model)
    if scale is not None:
        checked_scale(scale)
    given = {} if weights is None else fitting(weights.weights, weights.values, subject)
    lent = nullcontext() if weights is None else subject.with_weights(given)
    with lent, np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return _recorded(subject, batch, parsed, scale)


def fitting(
    weights: Sequence[Weight],
    values: Mapping[str, NumpyArray],
    subject: Subject,
    mapping: Mapping[str, str] | None = None,
) -> dict[str, NumpyArray]:
    """The weights of another model in the layout of this one, by this one's names.

    Raises:
        StateError: if a weight has no partner.
    """
    report = match_weights(weights, subject.backend.weights(subject.model), mapping)
    return {
        match.target.name: np.asarray(match.converted(values[match.source.name]), order="C")
        for match in report
    }


# -- the passes


class _Kept(dict[bytes, NumpyArray]):
    """Arrays by what they contain, so that each is in memory once."""

    def one(self, values: NumpyArray) -> NumpyArray:
        """A copy of ``values``, or the one that there is."""
        contiguous = np.ascontiguousarray(values).reshape(values.shape)
        digest = blake2b(repr((values.dtype, values.shape)).encode(), digest_size=16)
        digest.update(contiguous.reshape(-1).view(np.uint8).data)
        return self.setdefault(digest.digest(), contiguous.copy())


Measured = tuple[NumpyArray, float]
"""An array, and its noise."""


class _Passes(NamedTuple):
    """A pass and its disturbed twin: each array with its dtype, and the noise of each."""

    calls: Sequence[tuple[OpCall, int]]
    arrays: Mapping[Key, tuple[str, NumpyArray]]
    noise: Mapping[Key, float]
    loss: Measured
    gradients: Mapping[str, Measured]
    raised: str


def _noise(disturbed: NumpyArray, before: NumpyArray) -> float:
    """How far a disturbance moved an array; 1 where infinities and NaN come and go."""
    change = apart(disturbed, before) if disturbed.shape == before.shape else 1.0
    return min(change, 1.0)


def _passes(
    subject: Subject, batch: Sequence[Any], run: Policy, scale: float, shown: Policy, kept: _Kept
) -> _Passes:
    backend, model = subject.backend, subject.model
    arrays: dict[Key, tuple[str, NumpyArray]] = {}
    noise: dict[Key, float] = {}

    def unscaled(seen: OpArray) -> NumpyArray:
        values = seen.as_cast(seen.on_host())
        return values / values.dtype.type(scale) if seen.key.is_gradient else values

    def keep(seen: OpArray) -> None:
        arrays[seen.key] = seen.operand.dtype, kept.one(unscaled(seen))

    def compare(seen: OpArray) -> None:
        if seen.key in arrays:
            noise[seen.key] = _noise(unscaled(seen), arrays[seen.key][1])

    first = ArrayObserver(backend, keep)
    found = subject.run(batch, run, scale, first, shown_as_under=shown)
    rng = np.random.default_rng(0)
    by = EPSILON[run.dtype if run.level != "O0" else "float32"]
    values, names = backend.read_weights(model), backend.parameter_names(model)
    others = {name: _disturbed(values[name], by, rng) for name in names}
    inputs = map_leaves(partial(_disturbed_input, backend=backend, by=by, rng=rng), tuple(batch))
    with subject.with_weights(others):
        again = partial(subject.run, policy=run, scale=scale, shown_as_under=shown)
        try:
            disturbed = again(inputs, observer=ArrayObserver(backend, compare))
        except Exception:  # a check of the user's, which shifted inputs do not pass
            noise.clear()
            disturbed = again(batch, observer=ArrayObserver(backend, compare))
    loss = np.asarray(found.loss)
    gradients = {}
    for name, scaled in found.gradients.items():
        change = _noise(disturbed.gradients.get(name, scaled), scaled)
        gradients[name] = scaled / scaled.dtype.type(scale), change
    return _Passes(
        tuple(first.calls.values()),
        arrays,
        noise,
        (loss, _noise(np.asarray(disturbed.loss), loss)),
        gradients,
        found.raised,
    )


def _disturbed(values: NumpyArray, by: float, rng: np.random.Generator) -> NumpyArray:
    moved = values.astype(np.float64) * (1 + by * rng.choice([-1, 1], values.shape))
    return moved.astype(values.dtype)


def _disturbed_input(x: Any, backend: Backend, by: float, rng: np.random.Generator) -> Any:
    """An input disturbed, as an array of NumPy's, if it is one in float32; others as they are.

    Whole numbers that a dtype of this epsilon holds stay, and nothing leaves the range of the values.
    So counts stay counts, and probabilities stay between 0 and 1.
    """
    if "float32" not in str(getattr(x, "dtype", "")):
        return x
    values = x if isinstance(x, np.ndarray) else backend.to_numpy(x)
    if not values.size:
        return values
    moved = _disturbed(values, by, rng)
    whole = (values == np.rint(values)) & (np.abs(values) <= 2 / by)
    lowest, highest = np.fmin.reduce(values, axis=None), np.fmax.reduce(values, axis=None)
    return np.where(whole, values, np.clip(moved, lowest, highest))


def _recorded(
    subject: Subject, batch: Sequence[Any], policy: Policy, scale: float | None
) -> Recording:
    backend, kept = subject.backend, _Kept()
    values = {name: kept.one(each) for name, each in backend.read_weights(subject.model).items()}

    full = _passes(subject, batch, FLOAT32, 1.0, policy, kept)
    if scale is None:
        scale = _scale(policy, full.arrays)
    low = full if policy == FLOAT32 else _passes(subject, batch, policy, scale, policy, kept)

    def in_both(own: Measured, exact: Measured | None) -> Values:
        full, full_noise = exact or (None, 0.0)
        return Values("float32", own[0], full, own[1], full_noise)

    arrays: dict[Key, Values] = {}
    for key, (dtype, array) in low.arrays.items():
        exact = full.arrays.get(key)
        noises = low.noise.get(key, 0.0), full.noise.get(key, 0.0)
        arrays[key] = Values(dtype, array, exact and exact[1], *noises)
    ops, backward = ops_of(low.calls, arrays)
    return Recording(
        backend.name,
        policy,
        scale,
        in_both(low.loss, full.loss),
        ops,
        backward,
        {name: in_both(own, full.gradients.get(name)) for name, own in low.gradients.items()},
        tuple(backend.weights(subject.model)),
        values,
        low.raised,
    )


def _scale(policy: Policy, arrays: Mapping[Key, tuple[str, NumpyArray]]) -> float:
    """The power of two that brings the largest gradient to ``LARGEST_GRADIENT`` or half of it."""
    found = [largest(array) for key, (_, array) in arrays.items() if key.is_gradient]
    most = max(found, default=0.0)
    if not policy.needs_scaling or most == 0:
        return 1.0
    return 2.0 ** min(max(floor(log2(LARGEST_GRADIENT / most)), -126), 127)


def ops_of(
    calls: Sequence[tuple[OpCall, int]], arrays: Mapping[Key, Values]
) -> tuple[tuple[RecordedOp, ...], tuple[Arrival, ...]]:
    """The ops with their arrays, and the gradients in the order in which they came."""
    sides: dict[tuple[str, str, int], dict[str, dict[int, Values]]] = {
        (call.op, call.layer, occurrence): {"input": {}, "output": {}, "arrived": {}, "left": {}}
        for call, occurrence in calls
    }
    index = {call: i for i, call in enumerate(sides)}
    backward = []
    for key, values in arrays.items():
        sides[key[:3]][key.side][key.place] = values
        if key.side == "arrived" or key.side == "left":
            backward.append(Arrival(index[key[:3]], key.side, key.place))
    ops = tuple(
        RecordedOp(
            call.op,
            call.layer,
            call.dtype,
            tuple(of["input"].values()),
            tuple(of["output"].values()),
            of["arrived"],
            of["left"],
        )
        for (call, _), of in zip(calls, sides.values(), strict=True)
    )
    return ops, tuple(backward)


# -- files

_HINT = "lens.record(loss_fn, model, x, y).save('torch.npz')"

_NOT_A_RECORDING = (
    OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile,
)  # fmt: skip
"""What NumPy and JSON raise for other files."""


def _described(recording: Recording) -> tuple[str, dict[str, NumpyArray]]:
    """A recording as JSON, in which arrays have names; and the arrays by these, each once."""
    named: dict[int, tuple[str, NumpyArray]] = {}

    def name(array: NumpyArray) -> str:
        return named.setdefault(id(array), (f"array{len(named)}", array))[0]

    def by_place(values: Mapping[int, Values]) -> list[Any]:
        return [[place, *v] for place, v in values.items()]

    content = {
        "version": VERSION,
        "backend": recording.backend,
        "policy": recording.policy.to_dict(),
        "scale": recording.scale,
        "loss": recording.loss,
        "ops": [[*op[:5], by_place(op.arrived), by_place(op.left)] for op in recording.ops],
        "backward": recording.backward,
        "gradients": dict(recording.gradients),
        "weights": [weight._asdict() for weight in recording.weights],
        "values": dict(recording.values),
        "raised": recording.raised,
    }
    return json.dumps(content, default=name), dict(named.values())


def _restored(data: Mapping[str, Any], arrays: Mapping[str, NumpyArray]) -> Recording:
    if data["version"] != VERSION:
        raise ValueError(f"version {data['version']}")

    def one(dtype: str, low: str, full: str | None, *noises: float) -> Values:
        return Values(dtype, arrays[low], None if full is None else arrays[full], *noises)

    def by_place(values: Sequence[Any]) -> dict[int, Values]:
        return {place: one(*rest) for place, *rest in values}

    return Recording(
        data["backend"],
        Policy.from_dict(data["policy"]),
        data["scale"],
        one(*data["loss"]),
        tuple(
            RecordedOp(
                op,
                layer,
                dtype,
                tuple(one(*v) for v in inputs),
                tuple(one(*v) for v in outputs),
                by_place(arrived),
                by_place(left),
            )
            for op, layer, dtype, inputs, outputs, arrived, left in data["ops"]
        ),
        tuple(Arrival(*each) for each in data["backward"]),
        {name: one(*v) for name, v in data["gradients"].items()},
        tuple(Weight(**{**w, "shape": tuple(w["shape"])}) for w in data["weights"]),
        {name: arrays[v] for name, v in data["values"].items()},
        data.get("raised", ""),
    )
