"""How the calls of a training step stand to each other, by the events of a run.

Accumulation, a second step without the scaler, a scale that is set by hand, gradients that are never
cleared, calls that look like mixed precision or clipping and are not understood.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ampbridge_port.reader.dialects import is_known, is_known_library, steps
from ampbridge_port.reader.dialects.calls import Draft
from ampbridge_port.reader.machine import Machine
from ampbridge_port.reader.source import module_of, parents, place_of, text_of
from ampbridge_port.reader.values import (
    Class,
    Event,
    Frame,
    Instance,
    Known,
    Library,
    Loop,
    Made,
    Unknown,
    Value,
)
from ampbridge_port.reading import Finding, Origin, Place

STEPS = frozenset({"step", "minimize", "apply_gradients", "apply"})
CLEARS = frozenset({"clear_grad", "clear_gradients", "zero_grad", "clear_gradient", "reset_grad"})
OF_JAX = re.compile(r"(flax\.nnx\.(ModelAnd)?Optimizer|optax\..*)\.update")
OPTIMIZER = re.compile(r"optim|opt\b|scaler|sgd|adam|\bself\.o\b", re.I)
NO_OPTIMIZER = re.compile(r"lr|sched|ema\b|warm|env\b|prof|log|writer|progress", re.I)
SCALER = re.compile(r"scaler", re.I)
LOSS_SCALER = re.compile(r"(loss|grad|native|apex)_?scaler|^scaler$", re.I)
LOGS = re.compile(r"log|writer|board|summary", re.I)
AMP_NAME = re.compile(
    r"(?:^|_)(?:amp|auto_?cast|grad_?scaler|loss_?scal\w*|mixed_?precision|fp16|bf16|float16)(?:$|_)"
    r"|Amp[A-Z]|AMP|GradScaler|LossScal|MixedPrecision|FP16|BF16"
)
ACCUMULATES = re.compile(r"^(?!.*(?:average|mean|loss|metric|stat|meter)).*accumulat", re.I)
"""Names of what accumulates gradients, and not numbers that are logged."""
EVALUATES = re.compile(r"eval|valid|test|infer|predict|generate|sample|export|bench", re.I)


def receiver(event: Event) -> str:
    """The text of what a method is called of."""
    node = event.node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return text_of(node.func.value)
    return ""


def text(event: Event) -> str:
    """The code of a call, on one line."""
    return module_of(event.node).segment(event.node)


def is_step(event: Event) -> bool:
    """Whether a call updates weights."""
    if OF_JAX.fullmatch(event.qualified):
        return True
    if event.method not in STEPS or NO_OPTIMIZER.search(receiver(event)):
        return False
    of_library = re.search("amp|optim", event.qualified.lower())
    return bool(of_library or OPTIMIZER.search(receiver(event)))


def has_steps(events: Sequence[Event]) -> bool:
    """Whether a program trains."""
    return any(is_step(event) or event.method == "fit" for event in events)


def is_pass(event: Event) -> bool:
    """Whether a call computes gradients, or scales the loss for it."""
    if event.method == "gradient":
        return "tape" in receiver(event).lower()
    if event.method in ("grad", "value_and_grad"):
        return event.qualified.startswith(("jax.", "flax."))
    return event.method in ("backward", "scale") and not LOGS.search(receiver(event))


def trains(event: Event) -> bool:
    """Whether an event is no part of an evaluation."""
    without = event.around.without_gradients and not is_step(event)
    return not evaluates(event.around.frames, without)


def evaluates(frames: Sequence[Any], without_gradients: bool) -> bool:
    """Whether calls stand in an evaluation."""
    names = [frame.name for frame in frames]
    return without_gradients or any(EVALUATES.search(n) and "train" not in n.lower() for n in names)


# -- accumulation


def accumulation(
    events: Sequence[Event], machine: Machine, number: Callable[[Value], Any], draft: Draft
) -> None:
    """Set ``step.accumulate``: where steps are taken each n-th time, or after n backward passes."""
    if "step.accumulate" in draft.settings or "step.accumulate" in draft.unknown:
        return
    made = [event for event in events if is_step(event) and trains(event)]
    passes = [e for e in events if is_pass(e) and trains(e)]
    found = next(filter(None, map(_by_turns, made)), None)
    found = found or next(filter(None, (_by_loop(step, passes) for step in made)), None)
    if found is None:
        _accumulates_elsewhere(events, number, draft)
        return
    step, turns, said = found
    count = number(turns)
    if isinstance(count, Place):
        draft.unknown["step.accumulate"] = count
        return
    if isinstance(count, float) and count.is_integer():
        count = int(count)
    if not isinstance(count, int) or isinstance(count, bool) or count <= 1:
        return
    draft.set("step.accumulate", count)
    draft.origins["step.accumulate"] = Origin(place_of(said))
    if _begins_with_one(step, said):
        message = (
            f"The first update is after one micro-batch here, the others after {count}; a recipe "
            f"updates after each {count}."
        )
        hint = "(index + 1) in the condition, as was probably meant"
        draft.lost(place_of(said), message, hint)
    if not any(_is_average(value, node, count) for value, node in machine.divisors):
        scaled = passes[0].node if passes else step.node
        draft.lost(
            place_of(scaled),
            f"The gradients of {count} micro-batches are summed here; a recipe averages them.",
            f"multiply the loss by {count}, or with plain SGD the learning rate",
        )


def _accumulates_elsewhere(
    events: Sequence[Event], number: Callable[[Value], Any], draft: Draft
) -> None:
    """What a package accumulates in its own way: by an argument that is 1, or not known."""
    for event in events:
        says = ACCUMULATES.search(event.qualified.rpartition(".")[2])
        if not (says and _is_foreign(event) and trains(event)):
            continue
        made = event.receiver.event.passed if isinstance(event.receiver, Made) else ()
        counts = [number(each.value) for each in made if "accum" in each.name]
        if counts != [1]:
            draft.unknown["step.accumulate"] = place_of(event.node)
            return


def _by_turns(step: Event) -> tuple[Event, Value, ast.AST] | None:
    turns = [turn for turn in step.around.turns if turn.holds or turn.period is not None]
    return (step, turns[-1].period, turns[-1].node) if turns else None


def _begins_with_one(step: Event, said: ast.AST) -> bool:
    """``for i, x in enumerate(loader): ...; if i % n == 0: step``."""
    match said:
        case ast.Compare(
            left=ast.BinOp(left=ast.Name(id=counter), op=ast.Mod()),
            ops=[ast.Eq()],
            comparators=[ast.Constant(value=0)],
        ):
            loops = [each.node for each in step.around.loops]
            return any(_counts_from_zero(loop, counter) for loop in loops)
    return False


def _counts_from_zero(loop: ast.AST, counter: str) -> bool:
    match loop:
        case ast.For(
            target=ast.Tuple(elts=[ast.Name(id=name), *_]),
            iter=ast.Call(func=ast.Name(id="enumerate"), args=[_], keywords=[]),
        ):
            return name == counter
    return False


def _by_loop(step: Event, passes: Sequence[Event]) -> tuple[Event, Value, ast.AST] | None:
    """A loop with a backward pass beside the step."""
    around = step.around.loops
    for event in passes:
        loops = event.around.loops
        if len(loops) > len(around) and loops[: len(around)] == around:
            inner = loops[len(around)]
            if (around or _after(step, inner)) and inner.turns is not None:
                return step, inner.turns, inner.node
    return None


def _after(step: Event, loop: Loop) -> bool:
    return module_of(step.node) is module_of(loop.node)


def _is_average(value: Value, node: ast.AST, count: int) -> bool:
    """Whether a division is that of the loss by the number of micro-batches."""
    data = value.data if isinstance(value, Known) else None
    if not isinstance(data, (int, float)) or abs(data - count) > 1e-6 * count:
        return False
    statement = next(each for each in (node, *parents(node)) if isinstance(each, ast.stmt))
    return bool(_OF_LOSSES.search(module_of(node).segment(statement)))


_OF_LOSSES = re.compile(
    r"loss|cost|objective|backward|nll|elbo|scaler|cross_entropy|mean\(|err|jax\.tree", re.I
)


# -- scalers of other files


def scaling_elsewhere(events: Sequence[Event], draft: Draft) -> None:
    """A scaler that is used and not made here: ``scaler.scale(loss)``, ``loss_scaler(loss)``."""
    for event in events:
        on = receiver(event)
        used = event.method in ("scale", "unscale_", "step", "minimize") and SCALER.search(on)
        known = is_known(event.qualified) or isinstance(event.receiver, Instance)
        known = known or bool(LOGS.search(on))
        if not known and (used or LOSS_SCALER.search(event.method)):
            draft.seen[steps.ELSEWHERE] = place_of(event.node)
            return
    passes = [e for e in events if e.method == "backward" and all(each.name for each in e.passed)]
    plain = any(not re.search(r"scale|self\.\w+\(", receiver(e), re.I) for e in passes)
    owners = (f.owner for e in events for around in e.entered for f in around.frames)
    for owner in () if plain else filter(None, owners):
        base = _base_elsewhere(owner)
        if base is not None:
            draft.seen.setdefault(steps.ELSEWHERE, place_of(base))
            return


def _base_elsewhere(cls: Class) -> ast.AST | None:
    """The base class of another file, which may scale, that a class has."""
    for each in cls.lineage():
        for value, node in zip(each.bases, each.node.bases, strict=False):
            if isinstance(value, Library) and not is_known_library(value.qualified):
                return node
            if isinstance(value, Unknown):
                return node
    return None


# -- what is told


def check(events: Sequence[Event], framework: str, draft: Draft) -> None:
    """What of the step a recipe does not have."""
    if draft.settings.get("policy.level") == "O0":
        if steps.ELSEWHERE in draft.seen:
            place = draft.seen[steps.ELSEWHERE]
            message = "Whether this scales the loss is not known here; a recipe of O0 does not."
            draft.find("note", place, message, "--set policy.level=O1, if it scales")
        return
    if draft.says("scaler.") and draft.settings.get("scaler.enabled", True):
        _tell_of_second_steps(events, draft)
        _tell_of_scales_by_hand(events, draft)
        _tell_of_several_scalers(events, draft)
        _tell_of_a_loss_unscaled(events, framework, draft)
    _tell_of_gradients_that_stay(events, framework, draft)
    _tell_of_second_losses(events, draft)


def _together(one: Event, other: Event) -> bool:
    around, beside = one.around, other.around
    turns = [turn.node for turn in around.turns] == [turn.node for turn in beside.turns]
    return turns and (around.loops, around.frames[:1]) == (beside.loops, beside.frames[:1])


def _in_one_turn(one: Event, other: Event) -> bool:
    around, beside = one.around, other.around
    return bool(around.loops) and (around.loops, around.frames) == (beside.loops, beside.frames)


def _tell_of_second_losses(events: Sequence[Event], draft: Draft) -> None:
    """A second backward pass in the same turn, before the step."""
    last: Event | None = None
    for event in events:
        if not trains(event):
            continue
        if is_step(event):
            last = None
        elif event.method == "backward":
            if last is not None and last.node is not event.node and _in_one_turn(last, event):
                draft.note(
                    place_of(event.node),
                    "A second backward pass adds its gradients to those of the first before the "
                    "step; a step of a recipe has one loss.",
                    "add the losses up, and go backward once",
                )
            last = event
        elif event.method in CLEARS:
            last = None


def _tell_of_second_steps(events: Sequence[Event], draft: Draft) -> None:
    """``optimizer.step()`` where ``scaler.step(optimizer)`` steps under the same conditions."""
    made = [event for event in events if is_step(event)]
    scaled = [event for event in made if event.passed and event.method in ("step", "minimize")]
    for event in made:
        if event.passed or event.method != "step":
            continue
        for other in scaled:
            first = other.passed[0]
            same = text_of(first.node) == receiver(event) or (
                event.receiver is not None and first.value is event.receiver
            )
            if same and other.node is not event.node and _together(other, event):
                draft.lost(
                    place_of(event.node),
                    f"{receiver(event)} steps a second time here: the scaler has stepped, or has "
                    "skipped a step whose gradients overflowed; the recipe's steps are the "
                    "scaler's.",
                    "take this line out.",
                )
                break


def _tell_of_several_scalers(events: Sequence[Event], draft: Draft) -> None:
    """Optimizers that have a scaler each, made in one place, and before any of them steps."""
    made: dict[int, dict[int, Event]] = {}
    turn = {id(event): number for number, event in enumerate(events)}
    first_steps: dict[int, int] = {}
    for event in events:
        if is_step(event) and event.passed and isinstance(event.receiver, Made):
            of = event.receiver.event
            first_step = first_steps.setdefault(id(of.node), turn[id(event)])
            if turn.get(id(of), -1) < first_step:  # else it is of another training
                made.setdefault(id(of.node), {})[id(of)] = of
    for scalers in made.values():
        if len(scalers) > 1:
            first = next(iter(scalers.values()))
            message = (
                f"Each of {len(scalers)} optimizers has a scaler, and so a loss scale, of its own; "
                "a recipe's scaler is one for all."
            )
            draft.lost(place_of(first.node), message, "a scaler for each optimizer, as here")


def _tell_of_a_loss_unscaled(events: Sequence[Event], framework: str, draft: Draft) -> None:
    """Keras' scaler in a loop of one's own: it divides the gradients, and the loop scales the loss."""
    made = [e for e in events if trains(e)]
    steps_ = [e for e in made if is_step(e) and e.method in ("apply_gradients", "apply")]
    scales = any("scale" in e.method for e in made)
    if framework == "tensorflow" and steps_ and any(map(is_pass, made)) and not scales:
        draft.lost(
            place_of(steps_[-1].node),
            "Nothing here scales the loss: Keras 3 divides these gradients by the loss scale all "
            "the same, Keras 2 takes them as they are; the recipe's loss is scaled.",
            "optimizer.scale_loss(loss), in Keras 2 get_scaled_loss, as was probably meant",
        )


# -- several trainings in one program


def last_training(events: Sequence[Event]) -> tuple[list[Event], list[Finding]]:
    """The events of the last of several trainings: a function that trains and is called once more."""
    calls: dict[int, dict[int, Frame]] = {}
    for event in events:
        if is_step(event) and event.around.loops and trains(event):
            for frame in event.around.frames[1:]:
                if frame.loops == 0 and frame.call is not None:
                    calls.setdefault(id(frame.node), {})[id(frame)] = frame
    findings, past = [], set()
    for frames in calls.values():
        *before, last = frames.values()
        if before and len({ast.dump(f.call) for f in frames.values() if f.call is not None}) > 1:
            past |= {id(each) for each in before}
            message = f"{last.name} trains more than once here; the recipe is of its last call."
            assert last.call is not None
            findings.append(Finding("note", place_of(last.call), message, ONE_TRAINING))
    kept = [e for e in events if not any(id(frame) in past for frame in e.around.frames)]
    return kept, findings


ONE_TRAINING = "port a file with the one training that is meant"


def model_made_anew(events: Sequence[Event], script: ast.Module) -> tuple[ast.AST, ast.AST] | None:
    """A model that is made anew and trained once more: where it was made first, and last."""
    lines = [e.node.lineno for e in events if is_step(e) and len(e.around.frames) == 1]  # type: ignore[attr-defined]
    of_models = ("parameters", "named_parameters", "trainable_variables")
    models = {receiver(e) for e in events if e.method in of_models}
    made: dict[str, list[ast.Assign]] = {}
    for node in script.body:
        match node:
            case ast.Assign([ast.Name(name), *_], ast.Call() as call) if name in models:
                uses = {each.id for each in ast.walk(call) if isinstance(each, ast.Name)}
                if name not in uses:
                    made.setdefault(name, []).append(node)
    for first, *others in made.values():
        for again in reversed(others):
            between = any(first.lineno < n < again.lineno for n in lines)
            if between and any(n > again.lineno for n in lines):
                return first, again
    return None


SCALES = re.compile(r"^=?_?(?:(?:init_|cur_)?(?:loss_scaling|scale)|loss_scale)$")
_FILLS = frozenset(["fill_", "clamp_", "copy_", "mul_", "set_value", "clamp_min_"])


def _tell_of_scales_by_hand(events: Sequence[Event], draft: Draft) -> None:
    """``scaler._scale = ...``: a floor, or any scale that no rule of a recipe gives."""
    for event in events:
        if event.method in _FILLS:
            on = receiver(event)
            by_hand = bool(SCALER.search(on) and SCALES.search(on.rpartition(".")[2]))
        else:
            made = event.receiver
            of = made.qualified if isinstance(made, Made) else ""
            target = text_of(event.node)
            by_hand = event.method.startswith("=") and bool(SCALES.search(event.method))
            by_hand = by_hand and ("Scaler" in of or bool(SCALER.search(target)))
        if not by_hand:
            continue
        bounds = (text_of(p.test) for p in parents(event.node) if isinstance(p, ast.If))
        bound = next(bounds, "")
        floor = f" where {bound}: a floor, or any scale of its own" if bound else ""
        draft.lost(
            place_of(event.node),
            f"The scale is set by hand here{floor}; a recipe's scale follows its rule.",
            "scaler.min_scale in the recipe, if it is a floor",
        )


def _tell_of_gradients_that_stay(events: Sequence[Event], framework: str, draft: Draft) -> None:
    made = [e for e in events if is_step(e) and e.around.loops and trains(e)]
    clears = any(e.method in CLEARS or e.method == "=grad" for e in events)
    passes = any(e.method == "backward" for e in events)
    if made and passes and not clears and framework in ("paddle", "torch", "apex", "accelerate"):
        draft.note(
            place_of(made[-1].node),
            "Nothing here clears the gradients: each step is of the sum of all before; a recipe's "
            "step clears them.",
            "optimizer.clear_grad() or zero_grad() after the step, if it was forgotten",
        )


# -- what is told of a program


def of_program(events: Sequence[Event], machine: Machine) -> Iterator[Finding]:
    """Calls that look like mixed precision or clipping and are not understood."""
    yield from _wrappers(events, machine)
    yield from _between_unscaling_and_step(events)


def _is_foreign(event: Event) -> bool:
    """Whether a library has what is called, and no dialect knows that library."""
    name = event.qualified.lstrip(".")
    return bool(name) and not is_known_library(name)


def _wrappers(events: Sequence[Event], machine: Machine) -> Iterator[Finding]:
    for event in events:
        if not isinstance(event.node, ast.Call):
            continue
        named = event.method in ("autocast", "auto_cast", "amp_guard")
        region = named and not is_known_library(event.qualified)
        names = [event.method, *(each.name for each in event.passed if each.name)]
        foreign = _is_foreign(event)
        looks = any(AMP_NAME.search(each) or ACCUMULATES.search(each) for each in names)
        if not (region or (foreign and looks and event.receiver is None)):
            continue
        shown = text_of(event.node.func) if region else event.qualified
        why = machine.finder.why_not(event.qualified.rpartition(".")[0]) if event.qualified else ""
        stands = f"is not known: {why}" if why else "stands in another file."
        yield Finding(
            "unknown",
            place_of(event.node),
            f"What {shown} does {stands}",
            "read that file too, amp.port.read(...), and say here what it comes to, --set ...",
        )


_OF_GRADIENTS = re.compile(r"clip|grad|param", re.IGNORECASE)
_LOOKS_ALONE = frozenset([
    "abs", "all", "any", "append", "clone", "cpu", "detach", "float", "isfinite", "isinf",
    "isnan", "item", "log", "max", "mean", "min", "norm", "numel", "numpy", "pow", "size",
    "sqrt", "std", "sum", "tolist", "zero_grad", "parameters", "named_parameters",
    "modules", "print", "info", "debug", "add_scalar", "format", "clear_grad", "get_scale",
    "update", "backward", "len", "range", "enumerate", "is_available", "stack", "cat", "to",
    "device", "zeros", "tensor", "isnan", "nan_to_num", "all_reduce", "get_last_lr",
    "set_description", "set_postfix", "histogram", "add_histogram",
])  # fmt: skip


def _between_unscaling_and_step(events: Sequence[Event]) -> Iterator[Finding]:
    """Calls that may change the unscaled gradients, a clipper of one's own say."""
    unscaled: Event | None = None
    for event in events:
        if event.method == "unscale_":
            unscaled = event
        elif event.method in STEPS and event.passed:
            unscaled = None
        elif unscaled is not None and unscaled.around.loops[:1] == event.around.loops[:1]:
            library = event.qualified.partition(".")[0]
            may_change = library in ("", "torch", "paddle") or _is_foreign(event)
            if is_known(event.qualified) or event.method in _LOOKS_ALONE or not may_change:
                continue
            code = text(event)
            if isinstance(event.node, ast.Call) and _OF_GRADIENTS.search(code):
                yield Finding(
                    "unknown",
                    place_of(event.node),
                    f"`{code}` stands between unscale_ and step; what it does to the gradients is "
                    "not in the recipe.",
                    "step.clip_norm in the recipe, if it clips by the joint norm; or keep this call.",
                )
