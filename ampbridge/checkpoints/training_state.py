"""Saving and loading all that a training goes on with: weights, slots, schedule, scaler, counters."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from inspect import isroutine
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from ampbridge.adapters import registry
from ampbridge.adapters.backend import Backend, Model, Optimizer
from ampbridge.adapters.interrupts import hold_interrupts
from ampbridge.adapters.low_storage import warn_of_rounded_weights
from ampbridge.adapters.roles.saving import OptimizerState
from ampbridge.checkpoints import outside
from ampbridge.checkpoints.remembering import Remembered
from ampbridge.checkpoints.weights import Array, Match, Report, Weight, match_weights
from ampbridge.errors import AmpBridgeError, StateError, UnsupportedError
from ampbridge.errors.foreign_names import told_of
from ampbridge.version import __version__

Path = str | PathLike[str]
Tensors = Mapping[str, Array]


class Trained(NamedTuple):
    """The native objects whose state is saved; ``scheduler`` is None where it has none."""

    backend: Backend
    model: Model
    optimizer: Optimizer
    scheduler: Any


class Saved(NamedTuple):
    """A checkpoint's content, read and undamaged, but not yet compared with any model."""

    training: dict[str, Any]
    weights: list[Weight]
    values: Tensors
    optimizer: OptimizerState
    scheduler: Any


def save(path: Path, trained: Trained, training: Mapping[str, Any]) -> None:
    """Write a checkpoint. ``training`` is the train step's own ``state_dict``.

    All ranks read, since reading puts shards together; one writes.
    """
    from ampbridge.checkpoints import checkpoint  # its modules are half of what importing costs

    weights = trained.backend.weights(trained.model)  # a sharded model has its parameters back then
    optimizer = trained.backend.read_optimizer(trained.optimizer, trained.model)
    state = {
        "training": dict(training),
        # Whether it is floating its values say.
        "weights": [{name: getattr(each, name) for name in _DESCRIBED} for each in weights],
        "optimizer": dict(optimizer.settings),
        "scheduler": _scheduler_state(trained.scheduler),
        "framework": trained.backend.name,
        "versions": {"ampbridge": __version__, "python": sys.version.split()[0]},
    }
    values = trained.backend.read_weights(trained.model)
    tensors = {f"weights/{name}": array for name, array in values.items()}
    tensors |= {f"optimizer/{name}": array for name, array in optimizer.slots.items()}
    contents = checkpoint.Checkpoint(state, tensors)
    trained.backend.on_one_rank(trained.model, lambda: checkpoint.write(path, contents))


def read(path: Path) -> Saved:
    """Read a checkpoint of ``save``; refuses what is damaged, or something else."""
    from ampbridge.checkpoints import checkpoint

    state, tensors = checkpoint.read(path)
    parts = {"training": dict, "weights": list, "optimizer": dict}
    if not all(isinstance(state.get(name), kind) for name, kind in parts.items()):
        raise StateError(f"{str(path)!r} lacks parts of a training state.\n{_HINT}")
    values = _under("weights/", tensors)
    weights = [_weight(entry, values, path) for entry in state["weights"]]
    described = {weight.name: weight.shape for weight in weights}
    if described != {name: array.shape for name, array in values.items()}:
        raise StateError(f"{str(path)!r} describes different weights than it contains.\n{_HINT}")
    optimizer = OptimizerState(_under("optimizer/", tensors), state["optimizer"])
    return Saved(state["training"], weights, values, optimizer, state.get("scheduler"))


_HINT = "Hint: step.save(path) writes a checkpoint; pass the same path."


_DESCRIBED = ("name", "role", "axes", "shape")


def _weight(entry: Any, values: Tensors, path: Path) -> Weight:
    if isinstance(entry, dict) and entry.keys() == set(_DESCRIBED):
        name, role, axes, shape = (entry[field] for field in _DESCRIBED)
        words = all(isinstance(word, str) for word in (name, role, axes))
        if words and isinstance(shape, list) and len(axes) == len(shape):
            floating = name not in values or np.issubdtype(values[name].dtype, np.inexact)
            return Weight(name, role, axes, tuple(shape), bool(floating))
    raise StateError(f"{str(path)!r} describes no weight with {entry!r:.200}.\n{_HINT}")


def _under(prefix: str, tensors: Tensors) -> dict[str, Array]:
    return {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)}


def take_over(saved: Saved, trained: Trained) -> None:
    """Set model, optimizer and scheduler to what was saved from the same ones, bit by bit.

    Whatever is raised, by a scheduler's or an optimizer's own method or by an interrupt, everything is
    as before then. What does not fit is refused.
    """
    present = trained.backend.weights(trained.model)
    if sorted(present) != sorted(saved.weights):
        raise StateError(_other_model(present, saved.weights))
    _scheduler_state(trained.scheduler)  # what cannot be saved could not be put back either
    restore = _state_setter(trained.scheduler)
    if (saved.scheduler is None) != (restore is None):
        msg = "The checkpoint and the step do not both have a scheduler with a state.\n"
        raise StateError(msg + _HINT_IF_OTHER)
    put_back = _what_puts_back(trained)
    hold_interrupts()
    try:
        trained.backend.write_optimizer(trained.optimizer, trained.model, saved.optimizer)
        if restore is not None:
            restore(_with_own_keys(saved.scheduler))
        trained.backend.write_weights(trained.model, saved.values)
    except BaseException as error:
        put_back()
        if not isinstance(error, Exception):
            raise
        kind = "" if isinstance(error, AmpBridgeError) else f"{type(error).__name__}: "
        why = str(error).partition("\nHint: ")[0]
        msg = f"The checkpoint does not fit this optimizer or scheduler: {kind}{why:.300}\n"
        raise StateError(msg + _HINT_IF_OTHER) from error


_HINT_IF_OTHER = "Hint: make optimizer and scheduler as they were when it was saved."


def _what_puts_back(trained: Trained) -> Callable[[], None]:
    """A function that sets model, optimizer and scheduler to what they are now."""
    backend, model, optimizer = trained.backend, trained.model, trained.optimizer
    # Also of slots that reading makes.
    objects = Remembered(optimizer, *backend.records(optimizer), trained.scheduler)
    weights = backend.read_weights(model)
    state = backend.read_optimizer(optimizer, model)

    def put_back() -> None:
        objects.put_back()
        # Values that were overwritten in place:
        if not _same_bits(backend.read_weights(model), weights):
            backend.write_weights(model, weights)
        present = backend.read_optimizer(optimizer, model)
        if not _same_bits(present.slots, state.slots) or present.settings != state.settings:
            backend.write_optimizer(optimizer, model, state)
        objects.put_back()

    return put_back


def _same_bits(some: Tensors, others: Tensors) -> bool:
    return some.keys() == others.keys() and all(
        array.dtype == others[name].dtype and array.tobytes() == others[name].tobytes()
        for name, array in some.items()
    )


def _state_setter(scheduler: Any) -> Callable[[Any], Any] | None:
    """What sets a scheduler to a state: ``load_state_dict``, or ``set_state_dict`` as Paddle's."""
    setters = (getattr(scheduler, name, None) for name in ("load_state_dict", "set_state_dict"))
    return next(filter(callable, setters), None)


def _other_model(present: list[Weight], saved: list[Weight]) -> str:
    absent = {w.name for w in saved} - {w.name for w in present}
    new = {w.name for w in present} - {w.name for w in saved}
    other = {w.name for w in set(present) ^ set(saved)} - absent - new
    differences = {"missing": absent, "unexpected": new, "of another shape": other}
    told = ", ".join(f"{what} {sorted(names)[:4]}" for what, names in differences.items() if names)
    return (
        f"The checkpoint belongs to another model: {told}.\n"
        "Hint: amp.load_weights(path, model) loads only the weights; pass mapping= if names differ."
    )


def _scheduler_state(scheduler: Any) -> Any:
    """What the scheduler remembers, as plain data; None of a function, whose state its caller saves."""
    if scheduler is None or isroutine(scheduler) or isinstance(scheduler, partial):
        return None
    if not hasattr(scheduler, "state_dict") or _state_setter(scheduler) is None:
        kind = type(scheduler).__name__
        raise UnsupportedError(
            f"A checkpoint cannot contain the state of {kind}: it has no state_dict() and "
            f"load_state_dict().\nHint: give {kind} both; or, if it has no state or you save it "
            "yourself, train_step(..., scheduler=scheduler.step)."
        )
    state = scheduler.state_dict()
    try:
        return json.loads(json.dumps(_with_text_keys(state), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UnsupportedError(
            f"The state of {type(scheduler).__name__} is not plain data ({error!s:.100}), and "
            "checkpoints hold no pickle.\n"
            "Hint: train_step(..., scheduler=scheduler.step), and save scheduler.state_dict() yourself."
        ) from error


_PAIRS = "keys and values"


def _with_text_keys(value: Any) -> Any:
    """Mappings by numbers as pairs: JSON would make text of their keys (MultiStepLR's milestones)."""
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: _with_text_keys(item) for key, item in value.items()}
        return {_PAIRS: [[key, _with_text_keys(item)] for key, item in value.items()]}
    return [_with_text_keys(item) for item in value] if isinstance(value, (list, tuple)) else value


def _with_own_keys(value: Any) -> Any:
    """What ``_with_text_keys`` was given; tuples are lists."""
    if isinstance(value, Mapping):
        pairs = value[_PAIRS] if value.keys() == {_PAIRS} else value.items()
        return {key: _with_own_keys(item) for key, item in pairs}
    return [_with_own_keys(item) for item in value] if isinstance(value, list) else value


@told_of("load_weights")
def load_weights(path: Path, model: Model, mapping: Mapping[str, str] | None = None) -> Report:
    """Load the weights of a checkpoint of any framework into ``model``, in its layout.

        print(amp.load_weights("runs/torch", keras_model))

    Weights are paired by name, role and order. Kernels of dense layers and convolutions are
    transposed. ``mapping`` gives pairs that these rules do not find. Integer buffers that the
    checkpoint does not have (position ids) are not changed, and are reported.

    Args:
        mapping: names of weights of the model -> names in the checkpoint.

    Returns:
        A report of the pairs, and how each was converted; it prints as a table.

    Raises:
        StateError: if the checkpoint is damaged, or a weight has no partner; the model is unchanged
            then.
    """
    saved, backend = read(path), registry.backend(registry.framework_of(model))
    report = take_weights(saved, backend, model, mapping)
    present = backend.decoration(model, None)
    if present is not None and present.policy.variable_dtype != "float32":
        values = backend.read_weights(model)
        if any(_is_rounded(each, saved.values, values) for each in report):
            hint = repr(present.policy.replace(masters="float32"))
            warn_of_rounded_weights(present.policy, "saved in float32", hint)
    return report


def _is_rounded(match: Match, saved: Tensors, present: Tensors) -> bool:
    """Whether a model has other numbers now than the float32 ones that it was given."""
    given = match.converted(saved[match.source.name])
    is_same = np.array_equal(given, present[match.target.name], equal_nan=match.source.floating)
    return given.dtype == np.float32 and not is_same


def take_weights(
    saved: Saved, backend: Backend, model: Model, mapping: Mapping[str, str] | None
) -> Report:
    """Load the weights of ``saved`` into ``model``; see ``load_weights``."""
    report = match_weights(saved.weights, backend.weights(model), mapping)
    report.unused = (*report.unused, *outside.weights_of(saved.optimizer.slots))
    before = backend.read_weights(model)
    values = before | {
        match.target.name: np.asarray(match.converted(saved.values[match.source.name]), order="C")
        for match in report
    }
    hold_interrupts()
    try:
        backend.write_weights(model, values)
    except BaseException:
        backend.write_weights(model, before)
        raise
    return report
