"""Torch's callables: the functions behind a spelling, those that compute, and the composites.

One op has several function objects (``torch.softmax``, ``torch.Tensor.softmax``, ``F.softmax``, ...),
and a function mode is handed the one that was called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import cache
from threading import Lock
from types import BuiltinFunctionType, CodeType, FunctionType, MethodDescriptorType
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor

from ampbridge.errors import UnsupportedError
from ampbridge.policies.op_table import no_such_op
from ampbridge_torch import _private

Function: TypeAlias = Callable[..., Any]

# `x + y` arrives as Tensor.add in eager code and as Tensor.__add__ from Dynamo.
_OPERATORS = {
    "add": ("__add__", "__radd__"),
    "sub": ("__sub__", "__rsub__"),
    "mul": ("__mul__", "__rmul__"),
    "div": ("__truediv__",),
    "pow": ("__pow__", "__rpow__"),
    "matmul": ("__matmul__", "__rmatmul__"),
    "reciprocal": ("__rdiv__",),  # `2 / x` is `x.reciprocal() * 2`; also named __rtruediv__
}

# Allocations and conversions: what they are handed says a shape or a dtype, not a value.
_NOT_COMPUTING = ("_like", "type_as", "copy")


@cache
def functions_named(namespace: str, spelling: str) -> tuple[Function, ...]:
    """The functions that a spelling of the op table ("torch" or "aten" namespace) stands for."""
    if namespace == "aten":
        known = _by_aten_name().get(spelling, ())
        if known or not spelling.startswith("_") or spelling in _LOW_ALONE:
            return known
        # What layers and composites call under a private name: ``_weight_norm``, ``_sparse_mm``.
        return tuple(dict.fromkeys(filter(_is_seen_by_modes, _attributes(spelling))))
    found: Any = torch
    for attribute in spelling.split(".")[1:]:
        found = getattr(found, attribute, None)
    if found is None:  # not in this version of torch
        return ()
    owner, _, name = spelling.rpartition(".")
    operators = _OPERATORS.get(name, ()) if owner == "torch.Tensor" else ()
    return (found, *(getattr(Tensor, operator) for operator in operators))


# Its kernels take 16 bits alone. The op to list is scaled_dot_product_attention, which chooses a kernel.
_LOW_ALONE = frozenset({"_scaled_dot_product_flash_attention"})


@cache
def aten_functions(names: Collection[str]) -> frozenset[Function]:
    """The functions of several aten names, which are in a tuple or a frozenset."""
    return frozenset(function for name in names for function in functions_named("aten", name))


@cache
def own_functions(name: str) -> tuple[Function, ...]:
    """The functions of an op that the op table lacks: ``"my_library::my_op"``, ``"_grouped_mm"``.

    Raises:
        PolicyError: if torch has none of that name; a library's ops are there once it is imported.
        UnsupportedError: for an op that writes to its arguments: a cast one is a copy.
    """
    library, _, op = name.rpartition("::")
    found = [] if library else [f for f in _attributes(op) if _is_seen_by_modes(f)]
    packet = getattr(getattr(torch.ops, library or "aten"), op, None)
    if packet is not None:
        overloads = [getattr(packet, overload) for overload in packet.overloads()]
        if any(overload._schema.is_mutable for overload in overloads):
            msg = f"torch:{name} writes to its arguments; a region's cast would take the result.\n"
            raise UnsupportedError(msg + "Hint: list an op that returns its result instead.")
        found += [packet, *overloads]
    if not found:
        known = _private.registered_ops()
        raise no_such_op(f"torch:{name}", f"torch {torch.__version__}", known)
    return tuple(dict.fromkeys(found))


def _attributes(name: str) -> Iterator[Function]:
    """What is called ``name`` in torch's namespaces; dotted, it begins in ``torch`` itself."""
    namespaces = [torch] if "." in name else [owner for owner, _ in _private.FUNCTION_NAMESPACES]
    for found in namespaces:
        for part in name.removeprefix("torch.").split("."):
            found = getattr(found, part, None)
        if _is_function(found):
            yield found


def _is_seen_by_modes(function: Function) -> bool:
    return not isinstance(function, FunctionType) or function in _overridable()


_in_turn = Lock()
"""Torch silences its own deprecations there, by the process' filters: one thread would undo another's."""


@cache
def _overridable() -> frozenset[Function]:
    with _in_turn:
        functions = torch.overrides.get_overridable_functions().values()
    return frozenset(function for each in functions for function in each)


@cache
def computing_functions() -> frozenset[Function]:
    """Every overridable function that computes new tensors from its input tensors.

    Not among them: views, in-place functions, conversions, allocations.
    """
    return frozenset(
        function
        for aten_name, functions in _by_aten_name().items()
        if not aten_name.endswith(_NOT_COMPUTING)
        and not aten_name.startswith("new_")
        and _private.computes(aten_name)
        for function in functions
    )


@cache
def view_functions() -> frozenset[Function]:
    """Every overridable function that computes no new tensor: views, and questions about one."""
    return frozenset(
        function
        for aten_name, functions in _by_aten_name().items()
        if _private.is_aten(aten_name) and not _private.computes(aten_name)
        for function in functions
    )


@cache
def _by_aten_name() -> dict[str, tuple[Function, ...]]:
    found: dict[str, list[Function]] = {}
    for namespace, prefix in _private.FUNCTION_NAMESPACES:
        for name in dir(namespace):
            function = getattr(namespace, name, None)
            if name.startswith("_") or name.endswith("_") or not _is_function(function):
                continue
            if _is_seen_by_modes(function):
                aten_name = name if name.startswith(prefix) else prefix + name
                found.setdefault(aten_name, []).append(function)
    for name, operators in _OPERATORS.items():
        found[name] += [getattr(Tensor, operator) for operator in operators]
    return {name: tuple(dict.fromkeys(functions)) for name, functions in found.items()}


def _is_function(obj: object) -> TypeGuard[Function]:
    return isinstance(obj, (FunctionType, BuiltinFunctionType, MethodDescriptorType))


# -- composites: functions of torch.nn.functional that are made of others


def is_composite(function: Function) -> bool:
    """Whether it is Python code that shows itself to function modes and is no aten op."""
    return (
        isinstance(function, FunctionType)
        and function.__module__ == "torch.nn.functional"
        and any(name.startswith("has_torch_function") for name in function.__code__.co_names)
        and not _private.is_aten(function.__name__)
    )


def revealed_composites(listed: Collection[Function]) -> Iterator[tuple[Function, FunctionType]]:
    """Each composite that is not listed but calls, however deep, what is; with its twin.

    While a mode's ``__torch_function__`` runs, the mode is off, so it would not see those calls.
    """
    names = {function.__name__ for function in listed}
    for composite, twin in twins().items():
        if composite not in listed and not names.isdisjoint(_names_called(composite)):
            yield composite, twin


@cache
def twins() -> dict[Function, FunctionType]:
    """For each composite a twin that does not show itself to modes, so that its inner calls do.

    (``torch.overrides.redispatch_function`` is newer than torch 2.6 and Dynamo cannot trace it.)
    """
    namespace = vars(torch.nn.functional)
    checks = [name for name in namespace if name.startswith("has_torch_function")]
    revealing = {**namespace, **dict.fromkeys(checks, _no_torch_function)}
    found: dict[Function, FunctionType] = {}
    for each in filter(is_composite, namespace.values()):
        twin = FunctionType(
            each.__code__, revealing, each.__name__, each.__defaults__, each.__closure__
        )
        twin.__kwdefaults__ = each.__kwdefaults__
        found[each] = twin
    return found


def _no_torch_function(*_: object) -> bool:
    return False


@cache
def _names_called(function: Any) -> frozenset[str]:
    """The names in the body, and in the bodies of the same module's functions among them."""
    names: set[str] = set()
    bodies = [function]
    while bodies:
        body = bodies.pop()
        for name in _names(body.__code__) - names:
            names.add(name)
            inner = body.__globals__.get(name)
            if isinstance(inner, FunctionType) and inner.__module__ == function.__module__:
                bodies.append(inner)
    return frozenset(names)


def _names(code: CodeType) -> set[str]:
    nested = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, nested))
