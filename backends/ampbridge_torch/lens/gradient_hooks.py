"""Gradients as they arrive at an op and leave from it, by hooks on autograd's own nodes.

Nothing is added to the graph: ``torch.autocast`` and the simulation both remember the casts of
parameters, and sum the gradients of all their uses in low precision or high, by the very tensors
that they were handed.

An op's own nodes are those that were made while it ran. Where they lead to the nodes of its inputs,
a gradient leaves. Autograd runs later nodes first, so an op's are all done when an earlier op's
begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ampbridge.adapters.observation import Observer, OpCall, Operand
from ampbridge_torch import _private
from ampbridge_torch.lens.kernels import dtype_name

Node: TypeAlias = Any
"""A node of autograd: ``tensor.grad_fn``, or what adds to a leaf's ``.grad``."""


class Reports:
    """Tells an observer what the hooks see, op by op: the arrivals, then the leavings.

    Once it has begun: gradients that the forward pass itself takes are no part of the backward pass.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._has_begun = False
        self._call: OpCall | None = None
        self._left: dict[Leaving, Tensor] = {}
        self._pass = -1

    def begin(self) -> None:
        """From here on."""
        self._has_begun = True

    def arrived(self, call: OpCall, place: int, gradient: Tensor) -> None:
        """The whole gradient of an output."""
        if self._has_begun:
            self._turn_to(call)
            self._observer.gradient_arrived(call, place, _operand(gradient))

    @torch.no_grad()
    def left(self, call: OpCall, leaving: Leaving, gradient: Tensor) -> None:
        """A part of what an input's gradient is given."""
        if self._has_begun:
            self._turn_to(call)
            present = self._left.get(leaving)
            self._left[leaving] = gradient.detach() if present is None else present + gradient

    def _turn_to(self, call: OpCall) -> None:
        if self._call is not call:
            self._end()
            self._call = call
        if self._pass != _private.backward_pass():
            self._pass = _private.backward_pass()
            _private.at_the_end_of_the_backward_pass(self._end)

    @torch.no_grad()
    def _end(self) -> None:
        """All that leaves the op at hand has left."""
        call, left = self._call, self._left
        self._call, self._left = None, {}
        whole: dict[int, Tensor] = {}
        for leaving, gradient in left.items():
            for dtype in leaving.casts:
                gradient = gradient.to(dtype)
            present = whole.get(leaving.place)
            whole[leaving.place] = gradient if present is None else present + gradient
        for place in sorted(whole):
            assert call is not None
            self._observer.gradient_left(call, place, _operand(whole[place]))


def _operand(gradient: Tensor) -> Operand:
    return Operand(gradient.detach(), dtype_name(gradient.dtype))


class Leaving(NamedTuple):
    """The input that a gradient leaves for, and the dtypes that it takes on the way.

    The casts of a parameter are shared with other ops, which are summed before them; here they are
    those of one op's part.
    """

    place: int
    casts: tuple[torch.dtype, ...] = ()


class Edge(NamedTuple):
    """A way out of an op: the ``position``-th of a node's successors is that of one of ``places``."""

    node: Node
    position: int
    places: tuple[int, ...]
    casts: tuple[torch.dtype, ...]


class History:
    """Where the gradients of an op's inputs go, noted before it runs: it may write to them."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self._made_before = _private.nodes_made()
        self._nodes: dict[tuple[Node, int], tuple[int, ...]] = {}
        self._leaves: dict[int, tuple[int, ...]] = {}
        for place, x in enumerate(inputs):
            if not x.requires_grad:
                continue
            if x.grad_fn is None:
                self._leaves[id(x)] = (*self._leaves.get(id(x), ()), place)
            else:
                key = x.grad_fn, x.output_nr
                self._nodes[key] = (*self._nodes.get(key, ()), place)

    def hook(self, call: OpCall, outputs: Sequence[Tensor], reports: Reports) -> None:
        """Have the gradients of an op that ran, from ``outputs`` on, reported."""
        ends: dict[Node, None] = {}
        for place, x in enumerate(outputs):
            if x.grad_fn is not None and self._is_own(x.grad_fn):
                ends[x.grad_fn] = None
                x.grad_fn.register_prehook(partial(_arrive, reports, call, place, x.output_nr))
        for node, leavings in _leavings(list(self._ways_out(list(ends)))).items():
            node.register_hook(partial(_leave, reports, call, leavings))

    def _is_own(self, node: Node) -> bool:
        return _private.is_made_since(node, self._made_before)

    def _ways_out(self, ends: Sequence[Node]) -> Iterator[Edge]:
        """In the order in which the op's nodes hold them, depth first: that of its inputs."""
        seen = set(ends)
        waiting = [way for node in reversed(ends) for way in _ways(node)]
        while waiting:
            node, position, successor, number = waiting.pop()
            edge = self._edge(node, position, successor, number)
            if edge is not None:
                yield edge
            elif successor not in seen and self._is_own(successor):
                seen.add(successor)
                waiting.extend(_ways(successor))

    def _edge(self, node: Node, position: int, successor: Node, number: int) -> Edge | None:
        """The edge to ``successor``, if that is where an input's gradient goes."""
        places = self._nodes.get((successor, number))
        if places is not None:
            return Edge(node, position, places, ())
        leaf, casts = _leaf_behind_casts(successor)
        places = None if leaf is None else self._leaves.get(id(leaf))
        return None if places is None else Edge(node, position, places, casts)


def _ways(node: Node) -> list[tuple[Node, int, Node, int]]:
    """From a node to its successors, the last one first."""
    return [
        (node, position, successor, number)
        for position, (successor, number) in reversed(list(enumerate(node.next_functions)))
        if successor is not None
    ]


def _leaf_behind_casts(node: Node) -> tuple[Tensor | None, tuple[torch.dtype, ...]]:
    """The leaf that a node adds to, if through casts alone, and the dtypes that these lead to."""
    casts: list[torch.dtype] = []
    while not _private.is_leaf_node(node):
        if node.name() != "ToCopyBackward0" or node.next_functions[0][0] is None:
            return None, ()
        node = node.next_functions[0][0]
        at_leaf = _private.is_leaf_node(node)
        casts.append(node.variable.dtype if at_leaf else _private.gradient_dtype(node))
    return node.variable, tuple(casts)


def _leavings(edges: Sequence[Edge]) -> dict[Node, dict[int, Leaving]]:
    """What leaves from each node, by position.

    An array that was handed over twice has as many edges as places, in their order. Where their
    numbers differ, all of it counts for the first place.
    """
    found: dict[Node, dict[int, Leaving]] = {}
    for places in dict.fromkeys(edge.places for edge in edges):
        sharing = [edge for edge in edges if edge.places == places]
        in_turn = places if len(sharing) == len(places) else places[:1] * len(sharing)
        for edge, place in zip(sharing, in_turn, strict=True):
            found.setdefault(edge.node, {})[edge.position] = Leaving(place, edge.casts)
    return found


# -- the hooks, which hold no node


def _arrive(
    reports: Reports, call: OpCall, place: int, number: int, gradients: Sequence[Tensor | None]
) -> None:
    gradient = gradients[number]
    if gradient is not None:
        reports.arrived(call, place, gradient)


def _leave(
    reports: Reports,
    call: OpCall,
    leavings: dict[int, Leaving],
    gradients: Sequence[Tensor | None],
    _: Sequence[Tensor | None],
) -> None:
    for position, leaving in leavings.items():
        gradient = gradients[position]
        if gradient is not None:
            reports.left(call, leaving, gradient)
