"""Gradients as they arrive at an op and leave from it, by hooks on autograd's own nodes.

Nothing is added to the graph: ``torch.autocast`` and the simulation both remember the casts of
parameters, and sum the gradients of all their uses in low precision or high, by the very tensors
that they were handed.

An op's own nodes are those that were made while it ran. Where they lead to the nodes of its inputs,
a gradient leaves. Autograd runs later nodes first, so an op's are all done when an earlier op's
begin.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ampbridge.adapters.observation import Observer, OpCall
from ampbridge_torch import _private
from ampbridge_torch.lens.kernels import operand

Node: TypeAlias = Any
"""A node of autograd: ``tensor.grad_fn``, or what adds to a leaf's ``.grad``."""


class Leaving(NamedTuple):
    """The input that a gradient leaves for, and the dtypes that it takes on the way.

    The casts of a parameter are shared with other ops, which are summed before them; here they are
    those of one op's part.
    """

    place: int
    casts: tuple[torch.dtype, ...]


class GradientReports:
    """Tells an observer of an op's gradients, first of those that arrive, then of those that leave.

    It does so once it ``has_begun``: gradients that the forward pass takes itself are none of them.
    """

    def __init__(self, observer: Observer) -> None:
        self.has_begun = False
        self._observer = observer
        self._call: OpCall | None = None
        self._left: dict[Leaving, Tensor] = {}
        self._pass = -1

    def arrive(
        self, call: OpCall, place: int, number: int, gradients: Sequence[Tensor | None]
    ) -> None:
        """Hook: ``gradients[number]`` is that of the output at ``place``."""
        gradient = gradients[number]
        if self.has_begun and gradient is not None:
            self._turn_to(call)
            self._observer.gradient_arrived(call, place, operand(gradient))

    @torch.no_grad()
    def leave(
        self,
        call: OpCall,
        leavings: dict[int, Leaving],
        gradients: Sequence[Tensor | None],
        _: Sequence[Tensor | None],
    ) -> None:
        """Hook: ``gradients`` are parts of what is given to the inputs that ``leavings`` names."""
        for position, leaving in leavings.items():
            gradient = gradients[position]
            if self.has_begun and gradient is not None:
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
        """Report what left the last op, which is complete now."""
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
            self._observer.gradient_left(call, place, operand(whole[place]))


class History:
    """Where the gradients of an op's inputs go, noted before it runs: it may write to them."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self._made_before = _private.nodes_made()
        # The places of an input among the inputs, by its node and output, or by the leaf that it is.
        self._places: dict[tuple[Node, int] | int, tuple[int, ...]] = defaultdict(tuple)
        for place, x in enumerate(inputs):
            if x.requires_grad:
                self._places[id(x) if x.is_leaf else (x.grad_fn, x.output_nr)] += (place,)

    def hook(self, call: OpCall, outputs: Sequence[Tensor], reports: GradientReports) -> None:
        """Set the hooks that report the gradients of an op, which has made ``outputs``."""
        ends: dict[Node, None] = {}
        for place, x in enumerate(outputs):
            if x.grad_fn is not None and _private.is_made_since(x.grad_fn, self._made_before):
                ends[x.grad_fn] = None
                x.grad_fn.register_prehook(partial(reports.arrive, call, place, x.output_nr))
        edges: dict[tuple[int, ...], list[_Edge]] = defaultdict(list)
        for edge in self._ways_out(list(ends)):
            edges[edge.places].append(edge)
        leavings: dict[Node, dict[int, Leaving]] = defaultdict(dict)
        for places, sharing in edges.items():
            # An array that was handed over twice has as many edges as places, in their order. Where
            # their numbers differ, all of it counts for the first place.
            in_turn = places if len(sharing) == len(places) else places[:1] * len(sharing)
            for edge, place in zip(sharing, in_turn, strict=True):
                leavings[edge.node][edge.position] = Leaving(place, edge.casts)
        for node, of_node in leavings.items():
            node.register_hook(partial(reports.leave, call, of_node))

    def _ways_out(self, ends: Sequence[Node]) -> Iterator[_Edge]:
        """The edges to nodes of inputs, in the order in which the op's nodes hold them, depth first."""
        seen = set(ends)
        waiting = [way for node in reversed(ends) for way in _ways(node)]
        while waiting:
            node, position, successor, number = waiting.pop()
            places = self._places.get((successor, number))
            casts: tuple[torch.dtype, ...] = ()
            if places is None:
                leaf, casts = _leaf_behind_casts(successor)
                places = self._places.get(id(leaf))
            if places is not None:
                yield _Edge(node, position, places, casts)
            elif successor not in seen and _private.is_made_since(successor, self._made_before):
                seen.add(successor)
                waiting.extend(_ways(successor))


class _Edge(NamedTuple):
    """A way out of an op: the ``position``-th successor of a node is that of the inputs at ``places``."""

    node: Node
    position: int
    places: tuple[int, ...]
    casts: tuple[torch.dtype, ...]


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
