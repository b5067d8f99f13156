"""The process of one framework: ``python -m ampbridge_compare.worker FOLDER...``.

It does the job that lies in each folder and leaves the run there. On standard output it says how far
it is: a line of JSON a step. What a framework prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

import ampbridge as amp
import ampbridge_lens as lens
from ampbridge import neutral, workloads
from ampbridge.adapters import registry
from ampbridge.adapters.backend import float32_of
from ampbridge.errors import AmpBridgeError, AmpBridgeWarning, UnsupportedError
from ampbridge.policies.policy import Policy
from ampbridge.training.recipe import Recipe
from ampbridge.workloads import Workload
from ampbridge_compare.native import NativeLoop, loop_of
from ampbridge_compare.runs import Arrays, Job, Run, Steps, observed_policy
from ampbridge_lens.subject import Subject

Tell = Callable[[str], None]
"""Told of what is being done: "step 12", or something else."""


def main(folders: Sequence[str]) -> int:
    """Do the job in each of ``folders``; 1 if one failed."""
    tell = partial(_say, _own_stdout())
    return max([_do(Path(folder), tell) for folder in folders])


def _do(folder: Path, tell: Tell) -> int:
    job = Job.load(folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", AmpBridgeWarning)
        try:
            run = measured(job, tell)
        except AmpBridgeError as error:
            run = Run.failed(job, f"{type(error).__name__}: {error}")
        except Exception as error:
            run = Run.failed(job, f"{type(error).__name__}: {error}\n{_where(error)}")
    messages = (str(warning.message) for warning in caught)
    replace(run, notes=(*run.notes, *dict.fromkeys(messages))).save(folder)
    return int(run.error is not None)


def _where(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"Hint: it was raised in {place.filename}, line {place.lineno}."


def _own_stdout() -> TextIO:
    """Standard output for our lines alone; whatever else writes there goes to standard error."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return lines


def _say(lines: TextIO, doing: str) -> None:
    print(json.dumps({"doing": doing}), file=lines, flush=True)


def measured(job: Job, tell: Tell) -> Run:
    """Everything that a job asks for."""
    tell("starting")
    registry.backend(job.backend)
    recipe = Recipe.from_dict(job.recipe)
    build, starts = workloads.find(job.workload), list[float]()

    def built() -> Workload:
        workload = build(job.backend, job.seed)
        if job.rate != 1.0:
            neutral.schedule(lambda applied: job.rate, workload.optimizer)
        starts.append(_norm_of_weights(workload.model))
        return workload

    by_kind = {"ampbridge": _by_recipe, "native": _natively, "reference": _reference}
    run = by_kind[job.kind](job, recipe, built, tell)
    backend = registry.backend(job.backend)
    device, policy = backend.devices()[0], observed_policy(recipe)
    with float32_of(policy if job.kind == "ampbridge" else Policy("O0"), backend):
        products = backend.probe(device).settings.get("float32 products", "unknown")
    versions = {**_versions(job.backend), "float32 products": products}
    return replace(run, versions=versions, device=device.kind, starts=tuple(starts))


def _norm_of_weights(model: Any) -> float:
    """Of all parameters as one vector: the same in every layout."""
    backend = registry.backend(registry.framework_of(model))
    values, names = backend.read_weights(model), backend.parameter_names(model)
    squares = (np.sum(np.square(values[name].astype(np.float64))) for name in names)
    return float(np.sqrt(sum(squares)))


Build = Callable[[], Workload]


# -- by the recipe


def _by_recipe(job: Job, recipe: Recipe, build: Build, tell: Tell) -> Run:
    workload, policy = build(), observed_policy(recipe)
    tell("gradients")
    seen = _seen(workload, recipe, policy)
    tell("census")
    rows, refused = _census(workload, policy)
    fresh = build()
    steps = Steps(*_columns(_train(fresh, recipe, job.steps, tell)))
    return Run(
        job.label,
        job.backend,
        job.kind,
        execution=_execution(job.backend, policy),
        described=f"ampbridge, {policy!r}",
        steps=steps,
        accuracy=None if fresh.accuracy is None else fresh.accuracy(),
        census=rows,
        not_observed=refused,
        weights=_weights(workload.model),
        **seen._asdict(),
    )


def _execution(backend: str, policy: Policy) -> str:
    return "none" if policy.level == "O0" else registry.backend(backend).execution(policy)


class Seen(NamedTuple):
    """Gradients of the first batch; fields of a ``Run``."""

    gradients: Arrays
    float32_gradients: Arrays
    gradient_scale: float


def _seen(workload: Workload, recipe: Recipe, policy: Policy) -> Seen:
    """None where this backend shows no values."""
    subject, batch = Subject(workload.loss_fn, workload.model), workload.batches[0]
    try:
        full = subject.run(batch, Policy("O0")).gradients
        scale, low = _finite(
            lambda scale: subject.run(batch, policy, scale).gradients, _first_scale(recipe)
        )
    except UnsupportedError:
        return Seen({}, {}, 1.0)
    return Seen(low, full, scale)


def _first_scale(recipe: Recipe) -> float:
    scaled = recipe.scaler is not None and observed_policy(recipe).needs_scaling
    return recipe.scaler.init_scale if recipe.scaler and scaled else 1.0


def _finite(take: Callable[[float], Arrays], scale: float) -> tuple[float, Arrays]:
    """Gradients at ``scale``, or at the first half of it that does not overflow.

    Returns:
        That scale, and the gradients without it.
    """
    gradients = take(scale)
    while scale > 1.0 and not all(np.isfinite(each).all() for each in gradients.values()):
        scale /= 2
        gradients = take(scale)
    return scale, {name: each / scale for name, each in gradients.items()}


def _census(
    workload: Workload, policy: Policy
) -> tuple[tuple[dict[str, Any], ...] | None, str | None]:
    """The rows of a census as data; None, and why, where this backend cannot be observed."""
    try:
        census = lens.census(workload.loss_fn, workload.model, *workload.batches[0], policy=policy)
    except UnsupportedError as error:
        return None, str(error).partition("\n")[0]
    return tuple(census.to_dict()["rows"]), None


def _train(
    workload: Workload, recipe: Recipe, steps: int, tell: Tell
) -> Iterator[tuple[float, float, str | None]]:
    """Loss, scale and reason of each step."""
    step = amp.train_step(workload.loss_fn, workload.model, workload.optimizer, recipe=recipe)
    for number, batch in enumerate(workload.first(steps), 1):
        result = step(*batch)
        yield result.loss, result.scale, result.reason
        tell(f"step {number}")


def _columns(rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    return zip(*rows, strict=True)


def _weights(model: Any) -> tuple[Any, ...]:
    """The trainable parameters, in their order."""
    backend = registry.backend(registry.framework_of(model))
    described = {weight.name: weight for weight in backend.weights(model)}
    return tuple(described[name] for name in backend.parameter_names(model))


# -- in the framework's own way


def _natively(job: Job, recipe: Recipe, build: Build, tell: Tell) -> Run:
    loop = loop_of(job.backend, build, recipe)
    workload = loop.workload
    weights = _weights(workload.model)
    tell("gradients")
    names = [weight.name for weight in weights]

    def at(scale: float) -> Arrays:
        return dict(zip(names, loop.gradients(workload.batches[0], scale), strict=True))

    scale, gradients = _finite(at, _first_scale(recipe))
    steps = Steps(*_columns(_native_steps(loop, job.steps, tell)))
    return Run(
        job.label,
        job.backend,
        job.kind,
        execution=loop.execution,
        described=loop.described,
        notes=tuple(loop.notes),
        steps=steps,
        accuracy=None if workload.accuracy is None else workload.accuracy(),
        weights=weights,
        gradients=gradients,
        gradient_scale=scale,
    )


def _native_steps(
    loop: NativeLoop, steps: int, tell: Tell
) -> Iterator[tuple[float, float, str | None]]:
    """Loss, scale and reason of each step; of a skipped one native scalers tell no more than that."""
    for number, batch in enumerate(loop.workload.first(steps), 1):
        loss, scale, applied = loop.step(batch)
        yield loss, scale, None if applied else "inf"
        tell(f"step {number}")


# -- what both are held against


def _reference(job: Job, recipe: Recipe, build: Build, tell: Tell) -> Run:
    """Training in float32 by the same recipe, and gradients in float64."""
    tell("gradients")
    exact = build()
    reference: Any = registry.adapter_module(job.backend, "reference")
    gradients = reference.float64_gradients(exact.loss_fn, exact.model, exact.batches[0])
    workload = build()
    plain = recipe.replace(policy=Policy("O0"), schedule=None, scaler=None)
    steps = Steps(*_columns(_train(workload, plain, job.steps, tell)))
    return Run(
        job.label,
        job.backend,
        job.kind,
        execution="none",
        described="float32 throughout; its gradients are float64's",
        steps=steps,
        accuracy=None if workload.accuracy is None else workload.accuracy(),
        weights=_weights(workload.model),
        gradients=gradients,
    )


def _versions(backend: str) -> dict[str, str]:
    """Of what the figures depend on."""
    return {
        "Python": platform.python_version(),
        "ampbridge": amp.__version__,
        backend: str(getattr(sys.modules[backend], "__version__", "unknown")),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
