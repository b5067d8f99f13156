"""Values inside of containers."""

from collections import OrderedDict, UserDict, deque, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType

import pytest

from ampbridge.adapters.nested import Structure, holds_the_same, leaves, map_leaves, plain_copy

Pair = namedtuple("Pair", "left right")


class Encoding(UserDict):
    """As transformers' BatchEncoding: a mapping that remembers something besides."""

    def __init__(self, data, origin=None):
        super().__init__(data)
        self.origin = origin


class Examples(UserDict):
    """As a TensorDict, which iterates over its examples and not over its keys."""

    def __iter__(self):
        return iter([{}, {}])

    def keys(self):
        return self.data.keys()

    def values(self):
        return self.data.values()


@dataclass(frozen=True)
class Sample:
    x: object
    y: object = 0
    made: object = field(default=0, init=False)


CONTAINERS = {
    "list": [1, [2, 3]],
    "tuple": (1, (2, 3)),
    "named tuple": Pair(1, Pair(2, 3)),
    "dict": {"a": 1, "b": {"c": 2, "d": 3}},
    "ordered": OrderedDict(a=1, b=[2, 3]),
    "UserDict": Encoding({"a": 1, "b": Encoding({"c": 2, "d": 3})}, "here"),
    "TensorDict": Examples(a=1, b=[2, 3]),
    "dataclass": Sample(1, Sample(2, 3)),
    "deque": deque([1, deque([2, 3], maxlen=2)], maxlen=5),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_containers_keep_their_classes(kind):
    value = CONTAINERS[kind]
    doubled = map_leaves(lambda x: 2 * x, value)
    assert type(doubled) is type(value)
    assert leaves(doubled) == [2 * leaf for leaf in leaves(value)]
    assert [leaf for leaf in leaves(value) if leaf] == [1, 2, 3]  # as it was


def test_what_a_container_remembers_besides_stays():
    value = map_leaves(str, CONTAINERS["UserDict"])
    assert value.origin == "here"
    assert value["b"].data == {"c": "2", "d": "3"}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_what_does_not_change_is_not_copied(kind):
    assert map_leaves(lambda x: x, CONTAINERS[kind]) is CONTAINERS[kind]


def test_a_mapping_that_cannot_be_written_becomes_a_dict():
    assert map_leaves(str, MappingProxyType({"a": 1})) == {"a": "1"}


def test_strings_sets_and_classes_are_leaves():
    values = ["text", b"bytes", {1, 2}, Sample, None]
    assert leaves(values) == values


def test_classes_that_are_to_be_leaves():
    assert map_leaves(repr, [Pair(1, 2), 3], leaf=Pair) == ["Pair(left=1, right=2)", "3"]


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_structure_is_filled_again(kind):
    value = CONTAINERS[kind]
    structure = Structure(value)
    filled = structure.filled([10 * leaf for leaf in leaves(value)])
    assert structure.size == len(leaves(value))
    assert type(filled) is type(value)
    assert leaves(filled) == [10 * leaf for leaf in leaves(value)]


def test_structures_are_equal_by_classes_and_keys():
    structures = [Structure(value) for value in (*CONTAINERS.values(), [1, [2]], {"a": 1})]
    assert len(set(structures)) == len(structures)
    assert Structure({"a": 1, "b": [2]}) == Structure({"a": "x", "b": ["y"]})
    assert Structure({"a": 1}) != Structure({"b": 1})


class Tensor:
    """As torch's: whether two are equal is a tensor again, and not a truth value."""

    def __eq__(self, other):
        raise ValueError("ambiguous")

    __hash__ = object.__hash__


@pytest.mark.parametrize("kind", [list, set, deque, dict.fromkeys])
def test_a_container_holds_the_same_if_its_objects_are_the_same(kind):
    """A model's or an optimizer's dict may have tensors as keys."""
    first, second = Tensor(), Tensor()
    held = kind([first])
    kept = plain_copy(held)
    assert holds_the_same(held, kept)
    assert not holds_the_same(kind([second]), kept)
    assert not holds_the_same(kind([first, second]), kept)


def test_a_dict_holds_the_same_if_its_values_are_the_same():
    assert not holds_the_same({"a": Tensor()}, {"a": Tensor()})
