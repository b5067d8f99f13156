"""Weights of one framework for a model of another: who belongs to whom, and in which layout.

A weight is described by what it means, not by how a framework spells it: a dense kernel is one of
axes "i" and "o", whether it is stored ``(in, out)`` (Keras, Paddle, NumPy) or ``(out, in)`` (torch).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ampbridge.errors import ArgumentTypeError, StateError, nearest, one_of
from ampbridge.errors.foreign_text import ShownInNotebooks

Array = npt.NDArray[Any]

OTHER = "other."  # roles of what no role is known of; the attribute's name comes behind it


class Weight(NamedTuple):
    """A parameter or a buffer of a model.

    Attributes:
        name: dotted, as its framework names it.
        role: what it is: "dense.kernel", "dense.bias", "conv.kernel", "norm.scale", "norm.mean", ...;
            weights of the same role can stand for each other.
        axes: a letter for each axis, so that layouts can be told apart: "io", "oi", "oihw", "hwio".
        shape: as it is stored.
        floating: whether its values are floating-point numbers.
    """

    name: str
    role: str
    axes: str
    shape: tuple[int, ...]
    floating: bool = True

    @property
    def optional(self) -> bool:
        """Whether it may go without a partner: whole numbers that no role is known of, such as the
        position ids of a transformer, come with how a model is built, and are not learned."""
        return not self.floating and self.role.startswith(OTHER)

    @property
    def extent(self) -> tuple[tuple[str, int], ...]:
        """Its shape whatever the layout."""
        return tuple(sorted(zip(self.axes, self.shape, strict=True)))


class Match(NamedTuple):
    """``target`` takes the values of ``source``, its axes permuted if the layouts differ."""

    target: Weight
    source: Weight
    how: str
    """By "name", by "order", or by "mapping"."""

    @property
    def layout_change(self) -> str:
        """In words of the table."""
        source, target = self.source.axes, self.target.axes
        return "same" if source == target else f"{source} -> {target}"

    def converted(self, values: Array) -> Array:
        """``source``'s values in ``target``'s layout."""
        if self.source.axes == self.target.axes:
            return values
        return np.transpose(values, [self.source.axes.index(axis) for axis in self.target.axes])


class Report(ShownInNotebooks, Sequence[Match]):
    """What matched. Prints as a table.

    Attributes:
        kept: optional weights of the model that found no source, and are as they were.
        unused: optional weights of the checkpoint that found no target, and what was trained outside of
            its model.
    """

    def __init__(
        self,
        matches: Sequence[Match],
        kept: Sequence[Weight] = (),
        unused: Sequence[Weight] = (),
    ) -> None:
        self._matches = list(matches)
        self.kept, self.unused = tuple(kept), tuple(unused)

    def __getitem__(self, index: Any) -> Any:
        return self._matches[index]

    def __len__(self) -> int:
        return len(self._matches)

    def __str__(self) -> str:
        rows = [
            (m.target.name, m.source.name, m.how, m.layout_change, str(m.target.shape))
            for m in self._matches
        ]
        rows += [(w.name, "", "kept as it was", "", str(w.shape)) for w in self.kept]
        rows += [("", w.name, "not used", "", str(w.shape)) for w in self.unused]
        rows.insert(0, ("weight", "from", "matched by", "layout", "shape"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        return "\n".join(lines)


def match_weights(
    sources: Sequence[Weight],
    targets: Sequence[Weight],
    mapping: Mapping[str, str] | None = None,
    *,
    all_needed: bool = True,
) -> Report:
    """Find the source of each target.

        1. as ``mapping`` says, target name -> source name
        2. the source of the same name
        3. in order, among what is left: the n-th of a role and shape takes the n-th

    By order only if both sides have as many of that role and shape left: else it would be a guess. With
    ``all_needed`` each weight that is not optional must find its partner.
    """
    by_name = {source.name: source for source in sources}
    found = {match.target.name: match for match in _mapped(mapping or {}, by_name, targets)}
    taken = {match.source.name for match in found.values()}
    for target in targets:
        same = by_name.get(target.name)
        if same and target.name not in found and same.name not in taken and _fits(same, target):
            found[target.name] = Match(target, same, "name")
            taken.add(same.name)
    rest_of_targets = [t for t in targets if t.name not in found]
    rest_of_sources = [s for s in sources if s.name not in taken]
    for match in _in_order(rest_of_sources, rest_of_targets, all_needed):
        found[match.target.name] = match
    taken = {match.source.name for match in found.values()}
    return Report(
        [found[target.name] for target in targets if target.name in found],
        kept=[target for target in targets if target.name not in found],
        unused=[source for source in sources if source.name not in taken],
    )


def _fits(source: Weight, target: Weight) -> bool:
    return _kind(source) == _kind(target)


def _kind(weight: Weight) -> Hashable:
    """What two weights have in common that can stand for each other."""
    return weight.role, weight.extent, weight.floating


def _mapped(
    mapping: Mapping[str, str], by_source: Mapping[str, Weight], targets: Sequence[Weight]
) -> Iterator[Match]:
    """The pairs that ``mapping`` names, checked one by one."""
    by_target = {target.name: target for target in targets}
    if not isinstance(mapping, Mapping):
        msg = f"mapping is a dictionary of names, not {mapping!r:.80}.\n"
        raise ArgumentTypeError(
            msg + "Hint: mapping={'name in the model': 'name in the checkpoint'}"
        )
    for target, source in mapping.items():
        _check_known(target, by_target, "the model has no weight")
        _check_known(source, by_source, "the checkpoint has no weight")
        match = Match(by_target[target], by_source[source], "mapping")
        if not _fits(match.source, match.target):
            one, other = _described(match.source), _described(match.target)
            msg = f"mapping says {target!r}: {source!r}, but {one} is no {other}.\n"
            raise StateError(msg + "Hint: mapping={'target': 'source'} of one role and shape.")
        yield match


def _check_known(name: str, known: Mapping[str, Weight], what: str) -> None:
    if name not in known:
        close = nearest(name, known, 3)
        hint = one_of(close, f"{sorted(known)[:8]}")
        raise StateError(f"mapping: {what} {name!r}.\nHint: {hint}")


def _in_order(
    sources: Sequence[Weight], targets: Sequence[Weight], all_needed: bool
) -> list[Match]:
    left: dict[Hashable, tuple[list[Weight], list[Weight]]] = defaultdict(lambda: ([], []))
    for source in sources:
        left[_kind(source)][0].append(source)
    for target in targets:
        left[_kind(target)][1].append(target)
    even = [group for group in left.values() if len(group[0]) == len(group[1])]
    uneven = [group for group in left.values() if len(group[0]) != len(group[1])]
    needed = [group for group in uneven if not all(w.optional for w in (*group[0], *group[1]))]
    if needed and all_needed:
        raise StateError(_unmatched(needed))
    return [
        Match(target, source, "order")
        for group in even
        for source, target in zip(*group, strict=True)
    ]


def _unmatched(groups: Sequence[tuple[list[Weight], list[Weight]]]) -> str:
    sources = [weight for group in groups for weight in group[0]]
    targets = [weight for group in groups for weight in group[1]]
    example = (targets or sources)[0].name, (sources or targets)[0].name
    return (
        "The weights of the checkpoint and of the model do not pair up. "
        f"Without a partner in the model: {', '.join(map(_described, sources)) or 'none'}; "
        f"in the checkpoint: {', '.join(map(_described, targets)) or 'none'}.\n"
        f"Hint: amp.load_weights(path, model, mapping={{{example[0]!r}: {example[1]!r}}})"
    )


def _described(weight: Weight) -> str:
    return f"{weight.name} ({weight.role} {dict(weight.extent)})"
