"""Parity: whether two sides compute the same numbers of one batch, and which layers make the difference.

logits    r = log p_a(label) - log p_b(label), KL(a || b) and the top class of each row, in float64
others    ||a - b|| / ||b||
layers    their parts in the sum of r^2 (``layer_parts``), or of the squared errors of other outputs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ampbridge.adapters import registry
from ampbridge.checkpoints.weights import match_weights
from ampbridge.errors import AmpBridgeError, ArgumentError, ArgumentTypeError
from ampbridge.errors.foreign_names import told_of
from ampbridge.neutral import checks
from ampbridge.neutral.native import native_of
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import single
from ampbridge.reports.printing import SHORT, Table, TabularReport
from ampbridge_lens.align import Weights, check_weights, lent, without_partner
from ampbridge_lens.closeness import NumpyArray
from ampbridge_lens.layer_parts import AllArrays, LayerPart, floating_outputs, layer_parts
from ampbridge_lens.subject import Subject, in_words

Outputs = Mapping[str, NumpyArray]

BLOCK = 2**22
"""How many logits are computed with at a time; in float64 they take several times their memory."""

HINT = "lens.parity((forward, model, 'O0'), (forward, model, 'O2:bfloat16'), x)"


class Spread(NamedTuple):
    """One number of each row, over all rows.

    Attributes:
        mean: with its sign.
        magnitude: the mean of the magnitudes.
        high: the 95th percentile of the magnitudes.
        largest: the number of the largest magnitude, with its sign.
        at: the row of that.
    """

    mean: float
    magnitude: float
    high: float
    largest: float
    at: tuple[int, ...]


class OutputError(NamedTuple):
    """How far an output of ``a`` is from that of ``b``.

    Attributes:
        name: its keys; empty for an output that is in no container.
        relative: ||a - b|| / ||b||.
        largest: the largest |a - b|, and ``at`` where it is.
    """

    name: str
    relative: float
    largest: float
    at: tuple[int, ...]


class LogitsParity(NamedTuple):
    """How near the probabilities of two sides are, in nats.

    Attributes:
        rows: how many were compared.
        log_ratio: log p_a - log p_b of the labels.
        kl: KL(a || b).
        importance: the largest |p_a / p_b - 1| of a label.
        top: the fraction of rows in which both sides have the same top class.
    """

    rows: int
    log_ratio: Spread
    kl: Spread
    importance: float
    top: float


@dataclass(frozen=True)
class Parity(TabularReport):
    """How near the outputs of two sides are; prints as a report. It is false if they are equal to the bit.

    Attributes:
        sides: their backends and policies, or that outputs were passed.
        logits: None if the outputs are no logits, or no row could be compared.
        errors: of each output.
        layers: all that are known, the largest part first.
        remarks: what else is to be known: inf, NaN, constant outputs, what could not be compared.
    """

    sides: tuple[str, str]
    logits: LogitsParity | None
    errors: tuple[OutputError, ...]
    layers: tuple[LayerPart, ...]
    remarks: tuple[str, ...]

    def __bool__(self) -> bool:
        return any(error.largest != 0 for error in self.errors)

    def table(self) -> Table:
        """As it is printed: the result, its numbers, and the ten layers with the largest parts."""
        rows: list[tuple[str, str]] = []
        if self.logits is not None:
            found = self.logits
            rows = [
                (
                    "log p_a - log p_b",
                    f"mean {found.log_ratio.mean:.3g}; {_sizes(found.log_ratio)}",
                ),
                ("p_a / p_b", f"at most {found.importance:.3g} from 1"),
                ("KL(a || b)", _sizes(found.kl)),
            ]
        rows += [
            (
                f"output {e.name}".rstrip(),
                f"error {e.relative:.3g}; largest {e.largest:.3g} at {e.at}",
            )
            for e in self.errors
        ]
        rows += [
            (
                f"part {_percent(p.part, 1)}",
                f"{p.layer or 'the model itself'}: {', '.join(p.ops)}",
            )
            for p in self.layers[:SHORT]
        ]
        remarks = self.remarks
        if self.layers:
            explained = sum(part.part for part in self.layers)
            remarks += (
                f"part: a layer's share in the squared difference of the outputs. All {len(self.layers)}"
                f"{f', of which {SHORT} are shown,' if len(self.layers) > SHORT else ''} explain "
                f"{_percent(explained, 0)}; the rest is of ops that are not seen or have no partner.",
            )
        title = "a: {}\nb: {}\n".format(*self.sides) + self._result()
        return Table(title, ("", "found"), tuple(rows), remarks)

    def _result(self) -> str:
        if not self:
            return "The outputs are equal to the bit."
        if self.logits is None:
            worst = max(self.errors, key=lambda error: error.relative)
            which = f"Output {worst.name}" if worst.name else "The output"
            return f"{which} differs by {worst.relative:.3g} of its norm."
        found = self.logits
        return (
            f"log p differs by {found.log_ratio.magnitude:.3g} nats on average and by "
            f"{abs(found.log_ratio.largest):.3g} at most; the top class is the same in {found.top:.2%} of "
            f"{found.rows} rows."
        )


def _percent(part: float, digits: int) -> str:
    return f"{round(part, digits + 2) + 0.0:.{digits}%}"  # and never -0


def _sizes(of: Spread) -> str:
    return f"size {of.magnitude:.3g}, 95% up to {of.high:.3g}, largest {of.largest:.3g} at {of.at}"


@told_of("lens.parity")
def parity(
    a: Any,
    b: Any,
    *batch: Any,
    labels: Any = None,
    ignore_index: int = -100,
    weights: Weights = "restored",
    mapping: Mapping[str, str] | None = None,
) -> Parity:
    """Compare what two sides compute of one batch, without training, and name the layers that differ.

        def forward(model, ids):
            return model(ids)[:, :-1]

        print(lens.parity((forward, model, "O0"), (forward, model, "O2:bfloat16"), ids, labels=ids[:, 1:]))
        print(lens.parity(logits_of_an_engine, (forward, model, "O2:bfloat16"), ids, labels=ids[:, 1:]))

    A side is ``(forward, model)``, ``(forward, model, policy)`` (O1 by default), or outputs from
    elsewhere. Of what ``forward(model, *batch)`` returns, the output named "logits", or the only one, is
    compared by its probabilities, over the last axis.

    If both sides have models, ``b`` runs again with a backward pass, and the report has each layer's part
    in the mean square of the log-probability ratio, or in the squared error of other outputs. All arrays
    that the ops see are kept in memory until then.

    Args:
        labels: the class of each row of which the probabilities are compared, such as the next token;
            by default the top class of ``a``.
        ignore_index: rows with this label are left out.
        weights, mapping: as ``lens.align`` has them.

    Raises:
        ArgumentError, ArgumentTypeError: for something else than these, or outputs that do not fit.
        CallOrderError: if a model is decorated already.
        StateError: if a weight has no partner, unless each side has its own.
        UnsupportedError: for a policy that a backend refuses, or a backend that cannot observe ops.
    """
    check_weights(weights)
    first, second = _Side("a", a), _Side("b", b)
    models = [side.subject for side in (first, second) if side.subject is not None]
    options = weights != "restored" or mapping is not None
    if (batch and not models) or (options and len(models) < 2):
        msg = "Both sides are outputs, or one is and weights= or mapping= was passed. A side with a model is "
        msg += "(forward, model) or (forward, model, policy).\n"
        raise ArgumentError(f"{msg}Hint: {HINT}")
    layers: tuple[LayerPart, ...] = ()
    with np.errstate(all="ignore"), ExitStack() as stack:
        seen = AllArrays(models[0].backend) if len(models) == 2 else None
        one = first.outputs(batch, seen)
        described = [subject.backend.weights(subject.model) for subject in models]
        if seen is not None:
            values = models[0].backend.read_weights(models[0].model)
            stack.enter_context(lent(described[0], values, models[1], weights, mapping))
        other = second.outputs(batch)
        found = _Compared(one, other, labels, ignore_index)
        if seen is not None and weights == "restored" and models[0].model is not models[1].model:
            found.remarks.append("b ran with a's weights. Hint: weights='own' leaves b its own.")
        if seen is not None and found.gradients:
            pairs = match_weights(described[0], described[1], mapping, all_needed=False)
            both = one, other
            try:
                layers, unpaired = layer_parts(
                    seen.ops(), models[1], second.policy, batch, pairs, both, found.gradients
                )
                if unpaired:
                    found.remarks.append(without_partner("Ops", unpaired))
            except AmpBridgeError as error:  # frozen parameters, an output without a gradient
                found.remarks.append(f"The layers are not known: {in_words(error)}")
    return Parity(
        (first.name, second.name), found.logits, found.errors, layers, tuple(found.remarks)
    )


class _Side:
    """A function of a model with its policy, or outputs."""

    def __init__(self, place: str, side: Any) -> None:
        self.subject: Subject | None = None
        self.policy, self.name = Policy("O0"), "as passed"
        self._place, self._passed = place, side
        if isinstance(side, (tuple, list)) and len(side) in (2, 3) and callable(side[0]):
            forward, model, *given = side
            self.subject = Subject(forward, model)
            self.policy = single(*given) if given else Policy("O1")
            self.name = f"{self.subject.backend.name}, {self.policy!r}"

    def outputs(
        self, batch: Sequence[Any], observer: AllArrays | None = None
    ) -> dict[str, NumpyArray]:
        """The floating-point arrays, by their keys."""
        found = self._passed
        if self.subject is not None:
            found = self.subject.outputs(batch, self.policy, observer)
        on_host = {
            name: np.asarray(x)
            if isinstance(x, (np.ndarray, np.generic))
            else registry.backend(registry.framework_of(x)).to_numpy(x)
            for name, x in floating_outputs(found).items()
        }
        if not on_host or not all(x.size for x in on_host.values()):
            msg = f"{self._place} gives no floating-point array, or an empty one: {found!r:.80}.\n"
            raise ArgumentTypeError(f"{msg}Hint: {HINT}")
        return on_host


# -- the numbers


class _Compared:
    """The outputs of two sides, compared; ``gradients`` is what ``layer_parts`` takes."""

    def __init__(self, a: Outputs, b: Outputs, labels: Any, ignore_index: int) -> None:
        shapes = [_shapes(side) for side in (a, b)]
        if shapes[0] != shapes[1]:
            msg = f"The outputs of a have the shapes {shapes[0]}, those of b {shapes[1]}.\n"
            raise ArgumentError(
                msg + "Hint: def forward(model, x): return model(x)  # alike for both"
            )
        self.errors = tuple(_error(name, a[name], b[name]) for name in a)
        self.logits: LogitsParity | None = None
        self.remarks: list[str] = []
        self.gradients: dict[str, NumpyArray] = {}
        hint = "Hint: lens.parity(...) compares probabilities if forward returns logits (..., classes)."
        name = _name_of_logits(a)
        if name is not None:
            normalized = [s for s, x in (("a", a), ("b", b)) if _are_probabilities(x[name])]
            if len(normalized) == 1 or (normalized and labels is not None):
                who = " and ".join(normalized)
                msg = f"The outputs of {who} are no logits: they are probabilities, which add up to 1.\n"
                raise ArgumentError(msg + hint)
            name = None if normalized else name
        for output in a:
            for side, x in (("a", a[output]), ("b", b[output])):
                self._look(f"{side}: output {output}".rstrip(), x, is_logits=output == name)
        if name is not None:
            self._compare_rows(name, a[name], b[name], labels, ignore_index)
            return
        if labels is not None:
            msg = f"Passed labels= with outputs that are no logits, of the shapes {shapes[0]}.\n"
            raise ArgumentError(msg + hint)
        self.remarks.append(hint)
        for error in self.errors:
            if 0 < error.relative < np.inf:
                apart = a[error.name].astype(np.float64) - b[error.name]
                self.gradients[error.name] = apart / _norm(b[error.name]) ** 2

    def _look(self, what: str, x: NumpyArray, is_logits: bool) -> None:
        """Remark on inf and NaN, and on an output that does not depend on the row."""
        wrong = np.isnan(x) | (x == np.inf if is_logits else np.isinf(x))
        if wrong.any():
            places = f"{wrong.sum()} of {x.size} values, the first at {_place(wrong.argmax(), x)}"
            self.remarks.append(f"{what} is inf or NaN in {places}.")
        rows = x.reshape(-1, x.shape[-1]) if is_logits else x.reshape(len(x) if x.ndim else 1, -1)
        if len(rows) > 1 and (rows == rows[0]).all():
            self.remarks.append(f"{what} is constant: all {len(rows)} rows are the same.")

    def _compare_rows(
        self, name: str, a: NumpyArray, b: NumpyArray, labels: Any, ignore_index: int
    ) -> None:
        classes, shape = a.shape[-1], a.shape[:-1]
        if labels is None:
            labels = a.argmax(-1)
            self.remarks.append("The labels are a's top classes. Hint: labels=ids[:, 1:]")
        labels = np.asarray(
            labels if isinstance(labels, (np.ndarray, list)) else native_of(labels).host(labels)
        )
        if labels.dtype.kind not in "iu" or labels.shape != shape:
            raise ArgumentError(
                f"The labels are of dtype {labels.dtype} and shape {labels.shape}; allowed are integers of "
                f"shape {shape}, the class of each row of the logits.\n"
                "Hint: labels=ids[:, 1:], where forward returns model(ids)[:, :-1]"
            )
        checks.check_range(labels, classes, ignore_index)
        a, b, labels = a.reshape(-1, classes), b.reshape(-1, classes), labels.reshape(-1)
        sound = [np.isfinite(x.max(-1)) for x in (a, b)]  # NaN, inf, or -inf alone
        places = np.flatnonzero(sound[0] & sound[1] & (labels != ignore_index))
        if not len(places):
            self.remarks.append("No row could be compared by its probabilities.")
            return
        gradient = np.zeros_like(b, np.float32)
        numbers = []
        for block in np.array_split(places, -(-len(places) * classes // BLOCK)):
            *each, gradient[block] = _rows(a[block], b[block], labels[block])
            numbers.append(each)
        ratio, kl, agrees = map(np.concatenate, zip(*numbers, strict=True))
        at = [tuple(map(int, np.unravel_index(p, shape))) for p in places]
        self.logits = LogitsParity(
            len(places),
            _spread(ratio, at),
            _spread(kl, at),
            float(np.abs(np.expm1(ratio)).max()),
            float(agrees.mean()),
        )
        if np.isfinite(ratio).all():
            self.gradients[name] = gradient.reshape(*shape, classes)


def _rows(
    a: NumpyArray, b: NumpyArray, labels: NumpyArray
) -> tuple[NumpyArray, NumpyArray, NumpyArray, NumpyArray]:
    """Of each row the log ratio, KL and whether the top classes agree; the gradient of r log p_b."""
    x, y = _log_softmax(a), _log_softmax(b)
    apart = np.where(x == y, 0.0, x - y)  # -inf masks a class
    rows = np.arange(len(labels))
    ratio = apart[rows, labels]
    kl = np.where(x == -np.inf, 0.0, np.exp(x) * apart).sum(-1)
    gradient = -np.exp(y) * ratio[:, None]
    gradient[rows, labels] += ratio
    return ratio, np.maximum(kl, 0.0), a.argmax(-1) == b.argmax(-1), gradient


def _log_softmax(logits: NumpyArray) -> NumpyArray:
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    x -= np.log(np.exp(x).sum(-1, keepdims=True))
    return x


def _spread(values: NumpyArray, at: Sequence[tuple[int, ...]]) -> Spread:
    sizes = np.abs(values)
    worst = int(sizes.argmax())
    high = float(np.percentile(sizes, 95))
    return Spread(float(values.mean()), float(sizes.mean()), high, float(values[worst]), at[worst])


def _error(name: str, a: NumpyArray, b: NumpyArray) -> OutputError:
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    apart = np.where(same, 0.0, np.abs(a.astype(np.float64) - b))
    apart = np.where(np.isnan(apart), np.inf, apart)
    size = float(np.linalg.norm(apart))
    relative = size / _norm(b) if size else 0.0
    worst = apart.argmax()
    return OutputError(name, float(relative), float(apart.flat[worst]), _place(worst, a))


def _norm(x: NumpyArray) -> float:
    return float(np.linalg.norm(np.where(np.isfinite(x), x, 0.0).astype(np.float64)))


def _place(index: Any, x: NumpyArray) -> tuple[int, ...]:
    return tuple(map(int, np.unravel_index(int(index), x.shape)))


def _name_of_logits(outputs: Outputs) -> str | None:
    """The output of that name, or the only one, unless it has no classes."""
    named = [name for name in outputs if name.rpartition(".")[2] == "logits"]
    name = next(iter(named or outputs))
    x = outputs[name]
    has_none = (len(outputs) > 1 and not named) or x.ndim < 2 or x.shape[-1] < 2
    return None if has_none else name


def _are_probabilities(x: NumpyArray) -> bool:
    return bool((x >= 0).all() and np.allclose(x.sum(-1), 1, atol=0.01))


def _shapes(outputs: Outputs) -> str:
    """The shapes by the outputs' names; that of an output in no container alone."""
    shapes = {name: x.shape for name, x in outputs.items()}
    return str(shapes.get("", shapes) if len(shapes) == 1 else shapes)
