"""Float32 tensors in 16 bits and back, many at a time: a GPU would wait for the kernels of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ampbridge.adapters.low_storage import joined, rounded_by_chance, split
from ampbridge_torch import _private

CHUNK = 2**24
"""As many numbers of compact masters or low slots are float32 at a time, or one parameter."""

IN_CACHE = 2**15
"""As many are rounded at a time on a CPU: torch starts no threads for them."""

Draws = Callable[[Tensor], Tensor]


def seeded(seed: int) -> Draws:
    """Draws for one update: the same ones on each rank, and in a run that was resumed."""
    generators: dict[torch.device, torch.Generator] = {}

    def draw(like: Tensor) -> Tensor:
        generator = generators.get(like.device)
        if generator is None:
            generator = generators[like.device] = torch.Generator(like.device).manual_seed(seed)
        return torch.randint(
            0x10000, like.shape, generator=generator, dtype=torch.int32, device=like.device
        )

    return draw


def copy_all(to: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy tensors of any dtype, on a GPU by a few kernels."""
    if to:
        _private.lookup("_foreach_copy_")(to, values)


def widened(low: Sequence[Tensor]) -> list[Tensor]:
    """The values of ``low`` in new float32 tensors."""
    wide = [torch.empty_like(each, dtype=torch.float32) for each in low]
    copy_all(wide, low)
    return wide


def round_to(low: Sequence[Tensor], wide: Sequence[Tensor], draws: Draws | None) -> None:
    """Give ``low`` the values of ``wide``, by chance; without ``draws`` to nearest."""
    if draws is None:
        copy_all(low, wide)
        return
    for piece in pieces(wide):
        bits, drawn = _in_one(wide[piece]).view(torch.int32), _in_one([*map(draws, wide[piece])])
        rounded = rounded_by_chance(bits, drawn, torch.where).view(torch.float32)
        copy_all(low[piece], _apart(rounded, wide[piece]))


def split_to(low: Sequence[Tensor], rests: Sequence[Tensor], wide: Sequence[Tensor]) -> None:
    """Give ``low`` the upper halves of ``wide``, and ``rests`` what they lack."""
    for piece in pieces(wide):
        upper, rest = split(_in_one(wide[piece]).view(torch.int32), torch.where)
        copy_all(low[piece], _apart(upper.view(torch.float32), wide[piece]))
        copy_all(rests[piece], _apart(rest, wide[piece]))


def joined_from(low: Sequence[Tensor], rests: Sequence[Tensor]) -> list[Tensor]:
    """What ``split_to`` took apart, in new float32 tensors."""
    found = []
    for piece in pieces(low):
        upper = _in_one(low[piece]).float().view(torch.int32)
        rest = _in_one(rests[piece]).to(upper.device).int()
        found += _apart(joined(upper, rest, torch.where).view(torch.float32), low[piece])
    return [
        value if like.is_contiguous() else torch.empty_like(like, dtype=value.dtype).copy_(value)
        for value, like in zip(found, low, strict=True)
    ]


def pieces(tensors: Sequence[Tensor]) -> list[slice]:
    """Where those are that are computed as one: side by side, of one device and dtype."""
    starts: list[int] = []
    size, present = 0, None
    for place, tensor in enumerate(tensors):
        kind = tensor.device, tensor.dtype
        size += tensor.numel()
        if size > (IN_CACHE if tensor.device.type == "cpu" else CHUNK) or kind != present:
            starts.append(place)
            size, present = tensor.numel(), kind
    return [slice(*ends) for ends in pairwise([*starts, len(tensors)])]


def _in_one(tensors: Sequence[Tensor]) -> Tensor:
    flat = [tensor.reshape(-1) for tensor in tensors]
    return flat[0] if len(flat) == 1 else torch.cat(flat)


def _apart(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    parts = flat.split([tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def is_of(master: Tensor, value: Tensor, low: torch.dtype) -> bool:
    """Whether a float32 ``value`` is ``master`` or its rounding to ``low``, in all of its numbers.

    "kahan" rounds ties in its own way.
    """
    if master.shape != value.shape:
        return False
    upper: Tensor = split(master.view(torch.int32), torch.where)[0].view(master.dtype)
    same = (value == master) | (value == master.to(low)) | (value == upper)
    return bool(same.all())
