"""The names in a framework's op lists, and what they stand for.

Paddle's ``custom_white_list`` and ``custom_black_list`` take the names that ops had in its old static
graph: ``matmul_v2``, ``elementwise_add``, ``reduce_sum``. It takes no notice of any other, and a few
stand for something else than one would think. ``data/paddle_names.json`` holds the names under
which the dispatcher looks ops up, and Paddle's own lists; ``scripts/write_paddle_names.py`` takes
them from Paddle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ampbridge.errors import PolicyError, nearest
from ampbridge.policies import op_table

PaddleList = Literal["custom_white_list", "custom_black_list"]


class Remark(NamedTuple):
    """A message about an entry of a list, and a hint."""

    message: str
    hint: str = ""


@dataclass(frozen=True)
class ListReading:
    """What the entries of a framework's list stand for.

    Args:
        canonical: canonical ops that they move to that list, sorted: also those that only share a
            name (``conv2d`` is the name of ``conv1d`` too).
        ignored: entries without effect, or without effect on what one would think they name.
        lost: entries with an effect on ops that are no canonical ones.
        notes: entries that move another op than one would think.
    """

    canonical: tuple[str, ...]
    ignored: Mapping[str, Remark]
    lost: Mapping[str, Remark]
    notes: Mapping[str, Remark]


# Ops of static graphs alone: ``static.nn.fc`` and fluid's layers make them. What runs eagerly is never
# looked up under these names.
STATIC_ALONE: Mapping[str, str] = {
    "matmul": "matmul",
    "mul": "linear",
    "cross_entropy": "cross_entropy",
    "cross_entropy2": "cross_entropy",
    "lookup_table": "embedding",
}

# Names that the op table gives to a canonical op of which they are but a part or a variant.
_PARTS: Mapping[str, tuple[str, ...]] = {
    "mean": ("mean",),  # mean_all
    "reduce_sum": ("nansum", "count_nonzero"),  # they sum something else than their input
    "max_pool2d_with_index": ("max_pool2d",),  # with return_mask=True alone
}

# Names that mean another op than Paddle's function of that name -> what they stand for, and its name.
_MISLEADING: Mapping[str, tuple[str, str]] = {
    "mean": ("mean_all, which some losses end in", "reduce_mean"),
    "sum": ("add_n, the sum of several tensors", "reduce_sum"),
}

# Names of a part of what a canonical op is, beside the name of the rest.
_BESIDE: Mapping[str, str] = {
    "mean": "reduce_mean",  # mean_all
    "scale": "elementwise_mul",  # x * 2.0
}

# Whoever names one of these usually means the others too.
_ALSO_MEANT: Mapping[str, tuple[str, ...]] = {"matmul": ("linear",)}


def paddle_list(
    entries: Iterable[object],
    argument: PaddleList = "custom_black_list",
    *,
    static: bool = False,
) -> ListReading:
    """What the entries of Paddle's ``argument`` stand for.

    Args:
        static: of a static graph, whose layers still make ops that run nowhere else (``mul``).
    """
    names = sorted(set(map(str, entries)))
    ignored: dict[str, Remark] = {}
    lost: dict[str, Remark] = {}
    notes: dict[str, Remark] = {}
    for name in names:
        stands_for_ops = bool(paddle_meaning(name, static=static))
        if _BESIDE.get(name) in names:
            continue
        if name in _MISLEADING:
            stands_for, instead_of = _MISLEADING[name]
            (notes if stands_for_ops else ignored)[name] = Remark(
                f"{name!r} in {argument} stands for {stands_for}; paddle.{name} is {instead_of!r}.",
                _how_to_write((name,), argument),
            )
        elif not _is_looked_up(name, static):
            where = "eager Paddle" if name in STATIC_ALONE else "Paddle"
            ignored[name] = Remark(
                f"{name!r} in {argument} has no effect: {where} does not look up that name.",
                _how_to_write(_probably_meant(name), argument),
            )
        elif not stands_for_ops:
            lost[name] = Remark(f"{name!r} is cast by Paddle, and has no canonical op.")
    canonical = {op for name in names for op in paddle_meaning(name, static=static)}
    return ListReading(tuple(sorted(canonical)), ignored, lost, notes)


def paddle_meaning(name: str, *, static: bool = False) -> tuple[str, ...]:
    """The canonical ops that an entry of Paddle's lists moves; none if it has no effect on one."""
    if static and name in STATIC_ALONE:
        return (STATIC_ALONE[name],)
    if not _is_looked_up(name, static):
        return ()
    candidates = op_table.native_names("paddle").get(name, ())
    return tuple(op for op in candidates if op not in _PARTS.get(name, ()))


def paddle_names(op: str) -> tuple[str, ...]:
    """The entries that move a canonical op in Paddle's lists; none where it has no op of its own."""
    if op_table.own_prefix(op) == "paddle":
        kernel = op.removeprefix("paddle:")
        return tuple(name for name, of in looked_up().items() if of == kernel) or (kernel,)
    names = op_table.op(op).names.get("paddle", ())
    found = [name for name in names if op in paddle_meaning(name)]
    owned = [name for name in found if paddle_meaning(name)[0] == op]
    return (*found, *(part for part, rest in _BESIDE.items() if rest in owned))


def moved_with(op: str) -> tuple[str, ...]:
    """Other canonical ops that Paddle cannot list apart from ``op``: they share a name with it."""
    shared = {other for name in paddle_names(op) for other in paddle_meaning(name)}
    return tuple(sorted(shared - {op}))


def looked_up() -> Mapping[str, str]:
    """Name in Paddle's AMP lists -> the op of ``paddle._C_ops`` that is looked up under it."""
    ops: Mapping[str, str] = op_table.data("paddle_names.json")["ops"]
    return ops


def own_list(color: Literal["white", "black"], level: str, dtype: str) -> frozenset[str]:
    """Paddle's own list, dead entries and all."""
    return frozenset(op_table.data("paddle_names.json")[color][f"{level}:{dtype}"])


def _is_looked_up(name: str, static: bool) -> bool:
    if name in STATIC_ALONE:
        return static
    # "linear" is among ``paddle._C_ops``, but made of others there, which are looked up instead.
    return name in looked_up() and name != "linear"


def _probably_meant(name: str) -> tuple[str, ...]:
    """The canonical ops of a static op, of an op so called in Paddle, or of the nearest listed name."""
    op = STATIC_ALONE.get(name)
    bare = name.rpartition(".")[2].removesuffix("_")
    for spelling in (bare, f"paddle:{bare}"):
        with suppress(PolicyError):
            op = op or op_table.canonical(spelling)
    if op is None:
        close = nearest(name, (known for known in looked_up() if paddle_meaning(known)), 1)
        op = paddle_meaning(close[0])[0] if close else None
    return () if op is None else (op, *_ALSO_MEANT.get(op, ()))


def _how_to_write(meant: tuple[str, ...], argument: PaddleList) -> str:
    if not meant:
        return ""
    key = "allow" if argument == "custom_white_list" else "deny"
    names = [name for op in meant for name in paddle_names(op)]
    in_paddle = f"{argument}={{{_quoted(names)}}} in Paddle"
    if not names:
        in_paddle = "nothing in Paddle, which composes it of several ops"
    return f"for {' and '.join(meant)} write {in_paddle}, {key} = [{_quoted(meant)}] in a recipe."


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
