"""The errors of gradients against a reference, for each parameter, under any framework's names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ampbridge.checkpoints.weights import Match, Weight, match_weights
from ampbridge_compare.runs import Arrays, Run
from ampbridge_lens.exponents import Exponents

Against = Literal["float64", "its own float32"]


VANISHING: Mapping[Against, float] = {"float64": 2.0**-40, "its own float32": 2.0**-18}
"""A gradient whose share of the total norm is smaller than this is only the reference's own rounding.
The limit is some bits above its unit roundoff, because sums over a layer accumulate rounding errors."""


class ParameterError(NamedTuple):
    """The error of one parameter's gradient.

    Attributes:
        name: the parameter's name in its framework.
        partner: its name in the reference; the same name if the reference is its own float32.
        error: the distance relative to the reference's norm; infinite if the gradient is.
        against: which reference.
        vanishes: whether the reference is zero except for rounding, such as the bias of an attention's
            keys, which softmax ignores. A relative error means nothing there.
    """

    name: str
    partner: str
    error: float
    against: Against
    vanishes: bool


@dataclass(frozen=True)
class GradientError:
    """The errors of one run.

    Attributes:
        label: the label of the run.
        total: the error of all parameters that have a reference, as one vector.
        scale: the loss scale of the gradients; they are unscaled before they are compared.
        missing: parameters without a reference.
    """

    label: str
    total: float
    scale: float
    parameters: tuple[ParameterError, ...]
    missing: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; an error that is not finite is None."""
        return {
            "total": _finite(self.total),
            "scale": self.scale,
            "missing": list(self.missing),
            "parameters": [
                {**each._asdict(), "error": _finite(each.error)} for each in self.parameters
            ],
        }

    @property
    def own(self) -> int:
        """The number of parameters that are compared with this framework's own float32."""
        return sum(each.against == "its own float32" for each in self.parameters)


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def error_of(run: Run, reference: Run | None, own: Arrays) -> GradientError | None:
    """The error of ``run``; None if it has no gradients, or none with a reference.

    Args:
        own: float32 gradients of the same framework by name, for parameters without a partner in
            ``reference``, because their layout is different, such as query, key and value in one matrix.
    """
    partners = {} if reference is None else _partners(reference.weights, run.weights)
    compared: list[tuple[str, str, npt.NDArray[Any], npt.NDArray[Any], Against]] = []
    for name, found in run.gradients.items():
        if reference is not None and name in partners:
            match = partners[name]
            exact = match.converted(reference.gradients[match.source.name])
            compared.append((name, match.source.name, found, exact, "float64"))
        elif name in own:
            compared.append((name, name, found, own[name], "its own float32"))
    if not compared:
        return None
    distances = [_norm(_difference(found, exact)) for _, _, found, exact, _ in compared]
    norms = [_norm(exact) for _, _, _, exact, _ in compared]
    total_norm = _norm(np.array(norms))
    return GradientError(
        run.label,
        _ratio(_norm(np.array(distances)), total_norm),
        run.gradient_scale,
        tuple(
            ParameterError(
                name,
                partner,
                _ratio(distance, norm),
                against,
                norm < VANISHING[against] * total_norm,
            )
            for (name, partner, _, _, against), distance, norm in zip(
                compared, distances, norms, strict=True
            )
        ),
        tuple(name for name in run.gradients if name not in {each[0] for each in compared}),
    )


def _partners(sources: Sequence[Weight], targets: Sequence[Weight]) -> dict[str, Match]:
    """By the targets' names; without those that differ in more than the order of their axes."""
    kinds = {source.name: _kind(source) for source in sources}
    named = {target.name for target in targets if kinds.get(target.name) == _kind(target)}
    left = [Counter(_kind(w) for w in side if w.name not in named) for side in (sources, targets)]

    def paired(weights: Iterable[Weight]) -> list[Weight]:
        return [w for w in weights if w.name in named or left[0][_kind(w)] == left[1][_kind(w)]]

    return {match.target.name: match for match in match_weights(paired(sources), paired(targets))}


def _kind(weight: Weight) -> Hashable:
    return weight.role, weight.extent


def _difference(found: npt.NDArray[Any], exact: npt.NDArray[Any]) -> npt.NDArray[Any]:
    difference: npt.NDArray[Any] = found.astype(np.float64) - exact
    return difference if np.isfinite(difference).all() else np.array([np.inf])


def _norm(values: npt.NDArray[Any]) -> float:
    return float(np.sqrt(np.sum(np.square(values.astype(np.float64)))))


def _ratio(distance: float, norm: float) -> float:
    if distance == 0:
        return 0.0
    return distance / norm if norm else float("inf")


def lost_share(run: Run) -> float | None:
    """The share of float32's gradients other than zero that are zero in ``run``; None without any."""
    pairs = [(run.float32_gradients[name], low) for name, low in run.gradients.items()]
    present = sum(np.count_nonzero(full) for full, _ in pairs)
    lost = sum(np.count_nonzero((full != 0) & (low == 0)) for full, low in pairs)
    return lost / present if present else None


def exponents_of(gradients: Arrays) -> Exponents:
    """The binary exponents of all gradients together."""
    return Exponents.merged(Exponents.of(each) for each in gradients.values())
