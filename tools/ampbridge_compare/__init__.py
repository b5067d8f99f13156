"""Compares one recipe on several frameworks, each in its own process.

    from ampbridge_compare import compare

    comparison = compare(amp.Recipe.load("recipe.toml"), ["numpy", "torch"], steps=100)
    print(comparison)

On the command line: ``ampbridge compare recipe.toml``, which also writes a page with figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ampbridge import workloads
from ampbridge.adapters import registry
from ampbridge.errors import ArgumentError
from ampbridge.training.recipe import Recipe
from ampbridge_compare.comparison import Comparison
from ampbridge_compare.native import has_loop
from ampbridge_compare.processes import run_all
from ampbridge_compare.progress import bars
from ampbridge_compare.runs import Job, Run

__all__ = ["Comparison", "Run", "compare"]

REFERENCE = "numpy"
"""The backend of the reference: it computes in NumPy's float64, and needs no framework."""

STEPS = 200


def compare(
    recipe: Recipe,
    backends: Sequence[str],
    *,
    workload: str = "digits-mlp",
    steps: int = STEPS,
    seed: int = 0,
    native: bool = False,
    quiet: bool = True,
) -> Comparison:
    """Train ``workload`` with ``recipe`` on each of ``backends``, from the same weights and data.

    Args:
        workload: a name of ``workloads.NAMES``, or a Python file with ``build(backend, seed)``.
        steps: the number of calls of the training step.
        native: whether to run each framework's own mixed precision too, in a loop without ampbridge.
        quiet: whether to draw no progress bars on a terminal.

    Raises:
        ArgumentError: for invalid backends or steps.
        BackendNotFoundError: for an unknown backend. One that is not installed gives a failed run.
    """
    check(backends, steps)
    workloads.find(workload)
    job = Job(REFERENCE, "reference", workload, recipe.to_dict(), steps, seed)
    jobs = [job, *(replace(job, backend=name, kind="ampbridge") for name in backends)]
    if native:
        jobs += [replace(job, backend=name, kind="native") for name in backends if has_loop(name)]
    with bars({job.label: job.steps for job in jobs}, quiet=quiet) as tell:
        reference, *runs = run_all(jobs, tell)
    return Comparison(recipe, workload, steps, seed, tuple(runs), reference)


def check(backends: Sequence[str], steps: int) -> None:
    """That a comparison is asked for what there is.

    Raises:
        ArgumentError: for invalid backends or steps.
        BackendNotFoundError: for an unknown backend.
    """
    known = registry.backend_names()
    for name in backends:
        if name not in known:
            raise registry.no_backend(name)
    if not backends or len(set(backends)) < len(backends):
        msg = f"Backends are one or more, each once, not {list(backends)}.\n"
        raise ArgumentError(msg + "Hint: --backends numpy,torch")
    if steps < 1:
        msg = f"Passed steps={steps}; allowed are whole numbers from 1.\nHint: steps={STEPS}"
        raise ArgumentError(msg)
