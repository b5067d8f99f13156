"""Find the backend of a framework. Nothing here imports a framework.

A backend is an entry point in the group ``ampbridge.backends`` whose *name* is the root module of
its framework. Only the name decides, so the search loads no adapter. A broken adapter therefore
affects only its own users, and frameworks that cannot share a process (importing TensorFlow before
Paddle crashes the interpreter) are never imported together.

Models and optimizers may be classes of other packages than the framework's. An entry point in the
group ``ampbridge.modules`` says so: its name is such a root module, its value the framework
(``flax = "jax"``). It is read, and never loaded. A library for several frameworks has a module for each,
with bases of its classes: the name has dots then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from ampbridge.adapters.backend import Backend
from ampbridge.adapters.tracing import called_as_it_is, constant_result
from ampbridge.errors import ArgumentTypeError, BackendLoadError, BackendNotFoundError, listed
from ampbridge.errors.slips import FRAMEWORKS, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "ampbridge.backends"
MODULES = "ampbridge.modules"

# The core imports these itself, so they are always imported. They are in use if their adapter is.
CORE_DEPENDENCIES = frozenset({"numpy"})
ELSEWHERE = {"keras": "KERAS_BACKEND=tensorflow, torch or jax, ahead of `import keras`"}
"""Libraries whose models run on one of several frameworks, and how to choose one whose adapter takes them."""

Factory = Callable[[], Backend]
_registered: dict[str, Factory] = {}
_loaded: dict[str, Backend] = {}
_modules: dict[str, str] = {}
"""The modules that were registered with a backend -> its framework."""


@cache
def _entry_points() -> dict[str, list[EntryPoint]]:
    from importlib.metadata import entry_points  # 30 ms: only when first needed

    found = entry_points(group=GROUP)
    return {name: list(found.select(name=name)) for name in found.names}


@cache
def _named_modules() -> Mapping[str, str]:
    """Other modules -> the framework that entry points name for them."""
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=MODULES)}


def register_backend(name: str, factory: Factory, modules: Collection[str] = ()) -> None:
    """Add a backend to this process, or replace one.

    Args:
        name: the root module of its framework.
        factory: a callable without arguments that returns the backend, such as its class.
        modules: root modules of other packages whose classes are of this framework: of its models,
            optimizers or arrays, as ``flax`` and ``optax`` are JAX's.

    Raises:
        ArgumentTypeError: if the name or a module is not an identifier, or the factory is not callable.
    """
    if not (isinstance(name, str) and name.isidentifier() and callable(factory)):
        raise ArgumentTypeError(
            f"A backend is registered by its framework's root module and a factory, not by {name!r} "
            f"and {factory!r}.\nHint: amp.register_backend('jax', JaxBackend)"
        )
    if isinstance(modules, str) or not all(
        isinstance(m, str) and m.isidentifier() for m in modules
    ):
        raise ArgumentTypeError(
            f"A backend is registered with the root modules of other packages, not with {modules!r}.\n"
            "Hint: amp.register_backend('jax', JaxBackend, modules=['flax', 'optax'])"
        )
    for module in [module for module, owner in _modules.items() if owner == name]:
        del _modules[module]
    _modules.update(dict.fromkeys(modules, name))
    _registered[name] = factory
    _loaded.pop(name, None)
    _roots.cache_clear()


def backend_names() -> list[str]:
    """The registered backends, whether their framework is installed or not."""
    return sorted({*_entry_points(), *_registered})


def backends() -> dict[str, str]:
    """Each registered backend with its status: "loaded", "installed" or "not installed".

    Imports nothing.
    """
    return {name: _status(name) for name in backend_names()}


def _status(name: str) -> str:
    if name in _loaded:
        return "loaded"
    return "installed" if name in sys.modules or find_spec(name) else "not installed"


@called_as_it_is
def backend(name_or_object: object) -> Backend:
    """The backend with this name, or the backend of this object.

    Accepts a name, a model, an optimizer, a tensor, or a backend (which is returned).

    Raises:
        BackendNotFoundError: if no backend matches.
        BackendLoadError: if the backend cannot be used: its framework is missing, methods are
            missing, or two packages register it.
    """
    if isinstance(name_or_object, str):
        return _load(name_or_object)
    named = isinstance(getattr(name_or_object, "name", None), str)  # as tensors may be too
    if named and next(_missing_methods(name_or_object), None) is None:
        return cast(Backend, name_or_object)
    return _load(framework_of(name_or_object))


def active_backend() -> Backend:
    """The backend of the one registered framework that this process has imported.

    Raises:
        BackendNotFoundError: if it has imported none, or several.
    """
    names = names_in_use()
    if len(names) == 1:
        return _load(names[0])
    what = f"several ({listed(names)})" if names else "none"
    example = names[0] if names else "torch"
    raise BackendNotFoundError(
        f"Which backend? Of the registered frameworks {backend_names()}, this process has imported "
        f"{what}.\nHint: amp.autocast('O1', backend={example!r})"
    )


def names_in_use() -> list[str]:
    """The registered frameworks that this process has imported.

    TensorFlow imports JAX where it finds it. So a framework whose models are other packages' is in use
    if one of these is imported, and not only a part of the framework itself, as ``jaxlib`` is.
    """
    modules = {**_named_modules(), **_modules}

    def is_in_use(name: str) -> bool:
        if name in CORE_DEPENDENCIES:
            return any(_package(point) in sys.modules for point in _entry_points().get(name, []))
        others = [m for m, owner in modules.items() if owner == name and not m.startswith(name)]
        return name in sys.modules and (not others or any(m in sys.modules for m in others))

    return list(filter(is_in_use, backend_names()))


def _package(entry_point: EntryPoint) -> str:
    return entry_point.module.partition(".")[0]


@called_as_it_is
def framework_of(obj: object) -> str:
    """The registered framework that an object belongs to, by the module of its class.

    Raises:
        BackendNotFoundError: if it belongs to none.
    """
    found = framework_of_type(type(obj))
    if found is not None:
        return found
    refuse_without_adapter([obj])
    raise BackendNotFoundError(
        f"No registered framework knows {full_name(type(obj))}; registered are {backend_names()}.\n"
        "Hint: name it, backend='torch', or pass a native model, optimizer or tensor."
    )


def refuse_without_adapter(objects: Iterable[object]) -> None:
    """Refuse what a library makes for several frameworks, where no adapter takes what it has made here."""
    for obj in objects:
        cls: type = type(obj)
        hint = next((ELSEWHERE[root] for root in _roots(cls) if root in ELSEWHERE), None)
        if hint is not None and framework_of_type(cls) is None:
            raise BackendNotFoundError(
                f"{full_name(cls)} runs here on a framework with which no adapter trains it.\nHint: {hint}"
            )


@constant_result  # a loss asks for it while torch.compile traces
def framework_of_type(cls: type) -> str | None:
    """The registered framework of a class, by its module and those of its bases."""
    for root in _roots(cls):
        if root in _registered or root in _entry_points():
            return root
    return None


def framework_of_function(function: Callable[..., object]) -> str | None:
    """The registered framework, or library for several, whose module defines a function."""
    root = (getattr(function, "__module__", None) or "").partition(".")[0]
    owner = {**_named_modules(), **_modules}.get(root, root)
    known = owner in _registered or owner in _entry_points() or root in ELSEWHERE
    return owner if known else None


# A loop by hand asks several times a step. Bounded: it keeps the classes alive.
@lru_cache(maxsize=128)
def _roots(cls: type) -> tuple[str, ...]:
    """The root modules of a class and its bases, each once; for an adapter's own its framework."""
    modules = [base.__module__ for base in cls.__mro__]
    roots = [module.partition(".")[0] for module in modules]
    owners = {_package(point): name for name, points in _entry_points().items() for point in points}
    named = {**_named_modules(), **_modules}
    if ELSEWHERE.keys().isdisjoint(roots):  # what Keras makes of flax's modules is none of flax
        owners |= named
    parts = {f"{module}.": owner for module, owner in named.items() if "." in module}
    found = [owner for m in modules for part, owner in parts.items() if f"{m}.".startswith(part)]
    return tuple(dict.fromkeys([*found, *(owners.get(root, root) for root in roots)]))


def full_name(cls: type) -> str:
    """The name of a class in a message, with its module."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _load(name: str) -> Backend:
    if name not in _loaded:
        _loaded[name] = _checked(_registered.get(name) or _factory(name), name)
    return _loaded[name]


def _factory(name: str) -> Factory:
    """The factory that the one entry point of that name loads."""
    candidates = _entry_points().get(name, [])
    if not candidates:
        raise no_backend(name)
    if len(candidates) > 1:
        owners = ", ".join(f"{p.value} (from {p.dist.name if p.dist else '?'})" for p in candidates)
        msg = f"Several distributions provide backend {name!r}: {owners}.\nHint: uninstall all but one."
        raise BackendLoadError(msg)
    entry_point = candidates[0]
    return lambda: entry_point.load()()


def no_backend(name: str) -> BackendNotFoundError:
    """The error for a name under which no backend is registered."""
    known = backend_names()
    hint = did_you_mean(name, known, FRAMEWORKS, f"allowed are {listed(known)}.")
    return BackendNotFoundError(f"No backend {name!r}; registered are {known}.\n{hint}")


def _checked(factory: Factory, name: str) -> Backend:
    try:
        created = factory()
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        hint = f"pip install 'ampbridge[{name}]'" if missing == name else f"pip install {missing}"
        msg = f"Backend {name!r} needs a package that is not installed: {error.name or error}.\n"
        raise BackendLoadError(msg + f"Hint: {hint}") from error
    absent = sorted(_missing_methods(created))
    if absent:
        raise BackendLoadError(
            f"Backend {name!r} ({full_name(type(created))}) lacks {absent}.\n"
            "Hint: subclass ampbridge.Backend."
        )
    return created


def _missing_methods(obj: Any) -> Iterator[str]:
    """The protocol's methods that ``obj`` lacks, also those with a default, which a subclass has."""
    methods = (name for name in dir(Backend) if name[0] != "_" and callable(getattr(Backend, name)))
    return (name for name in methods if not callable(getattr(obj, name, None)))


def adapter_packages() -> set[str]:
    """The packages of all adapters that are installed. Imports nothing."""
    return {_package(point) for points in _entry_points().values() for point in points}


def adapter_package(name: str) -> str:
    """The package of a registered backend's adapter. Imports nothing."""
    if name in _registered:
        return _registered[name].__module__.partition(".")[0]
    return _package(_entry_points()[name][0])


def adapter_module(name: str, module: str) -> ModuleType | None:
    """A module of a registered backend's adapter, which is imported; None if the adapter has none."""
    path = f"{adapter_package(name)}.{module}"
    try:
        return import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        return None
