"""Python functions that a policy may allow or deny: the user's own, or those of a package.

``register_op`` says what becomes of such a function. A decorated function asks for the current region
at each call. A function that a policy names by its path, or that is registered without replacing its
name, is replaced in every module that contains it while a region is open (``interception``). The
adapter decides how it runs in a region (``Adapter``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial, wraps
from importlib import import_module
from inspect import getattr_static
from types import FunctionType, ModuleType
from typing import Any, TypeVar, overload

from ampbridge.adapters.interception import INHERITED, Interception, Site
from ampbridge.adapters.scoped import Scoped
from ampbridge.adapters.tracing import called_as_it_is, constant_result
from ampbridge.errors import ArgumentError, ArgumentTypeError, PolicyError
from ampbridge.policies import op_table
from ampbridge.policies.op_table import Category
from ampbridge.policies.policy import POLICIES_REMEMBERED, Policy

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)

Adapter = Callable[[str, Function], "Function | None"]
"""Returns the replacement for an op and its function in the innermost region of this thread; None
outside of regions, and if the region has no rule for the op."""

Rules = tuple[tuple[str, Category], ...]
"""Functions and their rules, as a part of the rules that an adapter compiles from a policy."""

Watch = Callable[[str, Function, tuple[Any, ...], Mapping[str, Any]], Any]
"""Calls a function and reports it as an op of this name."""


@dataclass(eq=False)
class FunctionOp:
    """A function that is an op.

    Attributes:
        name: the op whose rule it follows, and its name in reports.
        paths: its paths; a policy may name each.
        function: the original function.
        owner: for a method, its class and its name there; None for a function of a module.
        is_registered: whether ``register_op`` returned a replacement for it.
    """

    name: str
    paths: set[str]
    function: Function
    owner: tuple[type, str] | None = None
    is_registered: bool = False
    interception: Interception[None] = field(init=False)
    _in_modules: list[Site] = field(init=False, default_factory=list)
    _everywhere: list[Site] = field(init=False, default_factory=list)
    _looked_at: tuple[int, int] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.interception = Interception(f"ampbridge function {self.name}", self._sites)

    def rule(self, policy: Policy) -> Category:
        """The rule of ``policy``; with "promote" the ops inside of it follow their own rules."""
        if policy.lists == "native":
            return "promote"
        named = {self.name, *self.paths}
        if named & {*policy.deny}:
            return "deny"
        return "allow" if named & {*policy.allow} else policy.category(self.name)

    @cached_property
    def entry(self) -> Function:
        """The replacement, which asks for the current region."""
        name, function = self.name, self.function

        @wraps(function)
        def entry(*args: Any, **kwargs: Any) -> Any:
            return _called(name, function)(*args, **kwargs)

        del entry.__wrapped__  # Paddle's compiler would compile the wrapped function instead
        vars(entry)[_MARK] = self
        return entry

    def _sites(self) -> list[Site]:
        """Where it is. All modules are looked through again only if there may be another name in one.

        That takes some 20 ms in a process with a framework, and a step opens a region. A name counts
        as a reference to the function; a module that is imported may have one. A method of a class has
        names in modules, too: ``pscan = PScan.apply``, equal and not the same.
        """
        kind = type(self.function)
        if self._looked_at != self._state() or not all(
            vars(site.owner).get(site.attribute) is site.original for site in self._in_modules
        ):
            found = [
                Site(module, attribute, value, self.entry)
                for module in list(sys.modules.values())
                if type(module) is ModuleType
                for attribute, value in list(vars(module).items())
                if type(value) is kind and value == self.function
            ]
            if found != self._in_modules or self._looked_at is None:
                self._in_modules = found
                self._everywhere = [*self._in_class(), *found]
            del found  # what it holds must not be counted
            self._looked_at = self._state()
        return self._everywhere

    def _state(self) -> tuple[int, int]:
        return sys.getrefcount(self.function), len(sys.modules)

    def _in_class(self) -> Iterator[Site]:
        """The site of a method; a class method is bound to the class on which it is called."""
        if self.owner is None:
            return
        owner, attribute = self.owner
        found = getattr_static(owner, attribute)
        replacement: Any = self.entry
        if not isinstance(found, FunctionType):
            name = self.name

            def bound(cls: type, *args: Any, **kwargs: Any) -> Any:
                return _called(name, found.__get__(None, cls))(*args, **kwargs)

            replacement = classmethod(bound)
        yield Site(owner, attribute, vars(owner).get(attribute, INHERITED), replacement)


_MARK = "_ampbridge_op"
_known: dict[str, FunctionOp] = {}
changes = 0
"""How often a function has become an op: what was made of ``rules_of`` holds until the next time."""
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

        flash = amp.register_op(flash_attn.flash_attn_func)         a function of another package

    If it is allowed, floating-point arrays among its arguments are cast to the low precision; if it is
    denied, to float32. Nothing is cast inside of it: it computes in the dtype of its arguments
    (simulated: in float32, on rounded values), and the lens shows it as one op. If the policy neither
    allows nor denies it, it runs unchanged.

    Without registering it, ``Policy(deny=["package.module:function"])`` finds a function by its path,
    also a method (``"package.module:Class.apply"``), in every module or class that contains it. If
    only an object or a closure holds the function, register it where it is defined.

    Args:
        name: another op whose rule it follows; by default it is an op of its own, named by its path.

    Returns:
        The function to call; outside of regions it behaves like the original.

    Raises:
        ArgumentTypeError: if ``function`` is not a function.
        PolicyError: for an unknown op.
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
    op = FunctionOp(op_table.resolve(name or path), {path}, function, is_registered=True)
    _known[path] = op
    _count_change()
    return op.entry


def rules_of(policy: Policy) -> Rules:
    """The functions that ``policy`` allows or denies; imports those that it names by path.

    At O0 there are none, because all ops are float32. A step asks for them each time.
    """
    return _rules_of(policy, changes)


@lru_cache(maxsize=POLICIES_REMEMBERED)
def _rules_of(policy: Policy, present_changes: int) -> Rules:
    """See ``rules_of``; of a policy they may be others after each change."""
    del present_changes
    for path in (*policy.allow, *policy.deny):
        if op_table.is_function(path):
            _find(path)
    if policy.level == "O0":
        return ()
    found = {op.name: op.rule(policy) for op in _known.values()}
    return tuple((name, rule) for name, rule in found.items() if rule != "promote")


def _count_change() -> None:
    """A function has become an op, or has another path."""
    global changes
    changes += 1


def standing(names: Collection[str]) -> AbstractContextManager[Any]:
    """A context in which these functions are replaced in their modules; adapters open it with a region."""
    if not names:
        return nullcontext()
    stack = ExitStack()
    for op in _known.values():
        if op.name in names:
            stack.enter_context(op.interception.region(None))
    return stack


def answered_by(adapter: Adapter) -> Adapter:
    """Register ``adapter``: it is asked at each call of a function that is an op."""
    _adapters.append(adapter)
    return adapter


def named_by_path(functions: Rules) -> list[FunctionOp]:
    """The functions among ``functions`` that were found by their paths and never registered."""
    names = {name for name, _ in functions}
    return [op for op in _known.values() if op.name in names and not op.is_registered]


def shown_whole(policy: Policy) -> AbstractContextManager[None]:
    """A context in which a watch sees each listed function as one op, also in a pass in float32."""
    return _shown.during(frozenset(name for name, _ in rules_of(policy)))


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """A context in which ``watch`` calls the functions of ``shown_whole``, in regions and outside."""
    with _watch.during(watch), standing(_shown.get()):
        yield


@called_as_it_is
def _called(name: str, function: Function) -> Function:
    """The function to call in place of ``function`` in the current region."""
    replacement = function
    for adapter in _adapters:
        found = adapter(name, function)
        replacement = replacement if found is None else found
    if _is_watched(name):
        watch = _watch.get()
        assert watch is not None
        return lambda *args, **kwargs: watch(name, replacement, args, kwargs)
    return replacement


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
            raise op_table.no_such_op(path, f"module {module_name!r}", dir(found))
        found = getattr(found, part)
    if not callable(found):
        raise op_table.no_such_op(path, f"module {module_name!r}", filter(callable, vars(owner)))
    if _MARK in getattr(found, "__dict__", {}):  # registered, under another path
        op: FunctionOp = vars(found)[_MARK]
        op.paths.add(path)
        _count_change()
        return op
    in_class = (owner, qualified.rpartition(".")[2]) if isinstance(owner, type) else None
    _known[path] = FunctionOp(path, {path}, found, in_class)
    _count_change()
    return _known[path]
