"""Python functions that a policy may allow or deny: the user's own, or those of a package.

    @amp.register_op
    def fused_norm(x, weight): ...                       "package.layers:fused_norm" from now on

    Policy(deny=["package.layers:fused_norm"])           also without ``register_op``, by its path

Such a function is one op: allowed, its arrays are cast to the low precision; denied, to float32; and
inside nothing is cast, so that it computes in what it was given. Where a policy lists it in neither
way, it runs as it is, and what it is made of follows its own rules.

A decorated function asks at each call for the region that it is in. One that is named by its path, or
registered without its name being bound anew, is replaced in every module that holds it while a region
is open (``interception``). What the region does with it, its adapter says (``Adapter``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial, wraps
from importlib import import_module
from inspect import getattr_static
from types import FunctionType, ModuleType
from typing import Any, TypeVar, overload

from ampbridge.adapters.interception import INHERITED, Interception, Site
from ampbridge.adapters.scoped import Scoped
from ampbridge.adapters.tracing import called_as_it_is, constant_result
from ampbridge.errors import ArgumentError, ArgumentTypeError, PolicyError
from ampbridge.policies import oplists
from ampbridge.policies.oplists import Category
from ampbridge.policies.policy import Policy

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)

Adapter = Callable[[str, Function], "Function | None"]
"""Given an op and its function: what runs instead in the innermost region of this thread; None
outside of regions, and where the region has no rule for it."""

Watch = Callable[[str, Function, tuple[Any, ...], Mapping[str, Any]], Any]
"""Calls a function and reports it as an op of this name."""


@dataclass(eq=False)
class FunctionOp:
    """A function that is an op.

    Attributes:
        name: the op whose rule it follows and under which it is shown.
        paths: where it may be found; a policy may name each.
        function: itself.
        owner: the class that it is an attribute of, and under which name; None for a module's.
        is_registered: whether it is called as ``register_op`` returned it, or may be.
    """

    name: str
    paths: set[str]
    function: Function
    owner: tuple[type, str] | None = None
    is_registered: bool = False
    interception: Interception[None] = field(init=False)

    def __post_init__(self) -> None:
        self.interception = Interception(f"ampbridge function {self.name}", self._sites)

    def rule(self, policy: Policy) -> Category:
        """What ``policy`` says of it; "promote" leaves it to its parts."""
        if policy.lists == "native":
            return "promote"
        named = {self.name, *self.paths}
        if named & {*policy.deny}:
            return "deny"
        return "allow" if named & {*policy.allow} else policy.category(self.name)

    @cached_property
    def entry(self) -> Function:
        """What stands for it: it asks the region."""
        name, function = self.name, self.function

        @wraps(function)
        def entry(*args: Any, **kwargs: Any) -> Any:
            return _called(name, function)(*args, **kwargs)

        del entry.__wrapped__  # Paddle's compiler would take the source of what is wrapped instead
        vars(entry)[_MARK] = self
        return entry

    def _sites(self) -> list[Site]:
        if self.owner is not None:
            return [self._site_in_class(*self.owner)]
        return [
            Site(module, attribute, self.function, self.entry)
            for module in list(sys.modules.values())
            if type(module) is ModuleType
            for attribute, value in list(vars(module).items())
            if value is self.function
        ]

    def _site_in_class(self, owner: type, attribute: str) -> Site:
        """A method; of what is bound to the class, each subclass is bound to its own."""
        found = getattr_static(owner, attribute)
        replacement: Any = self.entry
        if not isinstance(found, FunctionType):
            name = self.name

            def bound(cls: type, *args: Any, **kwargs: Any) -> Any:
                return _called(name, found.__get__(None, cls))(*args, **kwargs)

            replacement = classmethod(bound)
        return Site(owner, attribute, vars(owner).get(attribute, INHERITED), replacement)


_MARK = "_ampbridge_op"
_known: dict[str, FunctionOp] = {}
_adapters: list[Adapter] = []
_watch: Scoped[Watch | None] = Scoped("ampbridge function watch", None)
_shown: Scoped[frozenset[str]] = Scoped("ampbridge functions shown", frozenset())


@overload
def register_op(function: F, *, name: str | None = None) -> F: ...
@overload
def register_op(function: None = None, *, name: str | None = None) -> Callable[[F], F]: ...
def register_op(function: Any = None, *, name: str | None = None) -> Any:
    """Make a function an op that policies may allow or deny, on every backend.

        @amp.register_op
        def fused_norm(x, weight): ...                              "my_package.layers:fused_norm"

        @amp.register_op(name="layer_norm")                         follows the rule of layer_norm
        def my_layer_norm(x, weight, bias): ...

        flash = amp.register_op(flash_attn.flash_attn_func)         somebody else's

    Allowed, floating-point arrays among its arguments are cast to the low precision; denied, to
    float32. Inside of it nothing is cast: it computes in what it was given (simulated: in float32,
    on rounded values), and is one op to the lens. Where a policy says neither, it runs as it is.

    Without registering it, ``Policy(deny=["package.module:function"])`` finds a function by its path,
    also a method (``"package.module:Class.apply"``), wherever a module holds it by a name; of what an
    object or a closure holds, register it where it is made.

    Args:
        name: another op, whose rule it follows; by default one of its own, its module and name.

    Returns:
        What is to be called; it is the function itself outside of regions.

    Raises:
        ArgumentTypeError: for what is no function.
        PolicyError: for a name that is none.
    """
    if function is None:
        return partial(register_op, name=name)
    if not callable(function) or isinstance(function, type):
        msg = f"register_op takes a function, not {function!r:.100}.\n"
        raise ArgumentTypeError(msg + "Hint: @amp.register_op above `def fused_norm(x): ...`")
    if _MARK in getattr(function, "__dict__", {}):
        function = vars(function)[_MARK].function
    path = f"{function.__module__}:{function.__qualname__}"
    if "<lambda>" in path and name is None:
        msg = "A lambda has no name that a policy could list.\n"
        raise ArgumentError(msg + "Hint: amp.register_op(function, name='my_package:my_op')")
    op = FunctionOp(oplists.resolve(name or path), {path}, function, is_registered=True)
    _known[path] = op
    return op.entry


Rules = tuple[tuple[str, Category], ...]
"""Functions and what is to become of them, as a part of what an adapter makes of a policy."""


def rules_of(policy: Policy) -> Rules:
    """The functions that ``policy`` allows or denies; those that it names are looked for.

    At O0 there are none: what they are made of is float32.

    Raises:
        PolicyError: for a function that does not exist.
    """
    for path in (*policy.allow, *policy.deny):
        if oplists.is_function(path):
            _find(path)
    if policy.level == "O0":
        return ()
    found = {op.name: op.rule(policy) for op in _known.values()}
    return tuple((name, rule) for name, rule in found.items() if rule != "promote")


def standing(names: Collection[str]) -> AbstractContextManager[Any]:
    """These functions are replaced where modules hold them; for adapters, around their regions."""
    if not names:
        return nullcontext()
    stack = ExitStack()
    for op in _known.values():
        if op.name in names:
            stack.enter_context(op.interception.region(None))
    return stack


def answered_by(adapter: Adapter) -> Adapter:
    """Have ``adapter`` asked at each call of a function that is an op."""
    _adapters.append(adapter)
    return adapter


def named_by_path(functions: Rules) -> list[FunctionOp]:
    """Those that are found where modules and classes hold them: they were never registered."""
    names = {name for name, _ in functions}
    return [op for op in _known.values() if op.name in names and not op.is_registered]


# -- for the lens


def shown_whole(policy: Policy) -> AbstractContextManager[None]:
    """What ``policy`` allows or denies is one op to whoever watches, also in a pass in float32."""
    return _shown.during(frozenset(name for name, _ in rules_of(policy)))


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Calls of functions that are shown whole are made by ``watch``, in regions and outside."""
    with _watch.during(watch), standing(_shown.get()):
        yield


# -- calls


@called_as_it_is
def _called(name: str, function: Function) -> Function:
    """What a call of ``function`` calls here."""
    found = function
    for adapter in _adapters:
        found = adapter(name, function) or found
    if _is_watched(name):
        watch = _watch.get()
        assert watch is not None
        return lambda *args, **kwargs: watch(name, found, args, kwargs)
    return found


@constant_result
def _is_watched(name: str) -> bool:
    return _watch.get() is not None and name in _shown.get()


def _find(path: str) -> FunctionOp:
    """The function at ``package.module:function``."""
    known = next((op for op in _known.values() if path in op.paths), None)
    if known is not None:
        return known
    module_name, _, qualified = path.partition(":")
    try:
        found: Any = import_module(module_name)
    except ImportError as error:
        msg = f"Unknown op {path!r}: there is no module {module_name!r} ({error}).\n"
        hint = "Hint: 'package.module:function', as in `from package.module import function`"
        raise PolicyError(msg + hint) from error
    owner: Any = found
    for part in qualified.split("."):
        owner = found
        if not hasattr(found, part):
            raise oplists.no_such_op(path, f"module {module_name!r}", dir(found))
        found = getattr(found, part)
    if not callable(found):
        raise oplists.no_such_op(path, f"module {module_name!r}", filter(callable, vars(owner)))
    if _MARK in getattr(found, "__dict__", {}):  # registered, under another path
        op: FunctionOp = vars(found)[_MARK]
        op.paths.add(path)
        return op
    in_class = (owner, qualified.rpartition(".")[2]) if isinstance(owner, type) else None
    _known[path] = FunctionOp(path, {path}, found, in_class)
    return _known[path]
