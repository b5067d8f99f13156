"""A run as data: what a process is asked to do, and what it hands back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ampbridge.checkpoints.weights import Weight
from ampbridge.policies.policy import Policy
from ampbridge.training.recipe import Recipe

Kind = Literal["ampbridge", "native", "reference"]
Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

JOB, RUN, GRADIENTS = "job.json", "run.json", "gradients.npz"


@dataclass(frozen=True)
class Job:
    """What one process does.

    Attributes:
        backend: the one framework that it loads.
        kind: "ampbridge" trains by the recipe; "native" in the framework's own way; "reference"
            trains in float32, and takes the gradients of the first batch in float64.
        workload: a name, or a Python file.
        recipe: as ``Recipe.to_dict`` has it.
        steps: calls of the training step, at least 1.
        seed: of weights and batches.
        rate: the factor of the workload's own learning rates.
    """

    backend: str
    kind: Kind
    workload: str
    recipe: Mapping[str, Any]
    steps: int
    seed: int
    rate: float = 1.0

    @property
    def label(self) -> str:
        """What the run is called wherever it is shown."""
        return {
            "ampbridge": self.backend,
            "native": f"{self.backend}, its own AMP",
            "reference": f"float32 ({self.backend})",
        }[self.kind]

    def save(self, folder: Path) -> None:
        """Write it where the process will look."""
        (folder / JOB).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Job:
        """The job that ``save`` wrote."""
        return cls(**json.loads((folder / JOB).read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Steps:
    """The training, a value a step.

    ``reason``: why a step was not applied: "inf", "nan", "accumulating"; None if it was.
    """

    loss: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    reason: tuple[str | None, ...] = ()

    @property
    def skipped(self) -> tuple[int, ...]:
        """The numbers, from 1, of the steps that an overflow or a NaN cost."""
        return tuple(i for i, why in enumerate(self.reason, 1) if why in ("inf", "nan"))


@dataclass(frozen=True)
class Run:
    """What came of a job. All but ``label``, ``backend`` and ``kind`` is empty where it failed.

    Attributes:
        error: what went wrong, with a hint; None if nothing did.
        versions: of Python, ampbridge and the framework; and how float32 products are computed.
        device: "cpu", "gpu", ...
        execution: how low precision was had: "native" kernels, "simulated" rounding, or "none" at all.
        described: what the run is made of, in words.
        notes: what a reader of its figures must know.
        accuracy: after the last step; None where the workload has none.
        census: rows of ``lens.census`` as data; None where ``not_observed`` says why.
        weights: the model's parameters, described.
        gradients: of the first batch, by the parameters' names, without the loss scale; float64 of the
            reference.
        float32_gradients: the same at O0, in this framework.
        gradient_scale: the loss scale at which ``gradients`` were taken.
        starts: the norm of all parameters of each model that was built, before any step.
    """

    label: str
    backend: str
    kind: Kind
    error: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    execution: str = ""
    described: str = ""
    notes: tuple[str, ...] = ()
    steps: Steps = Steps()
    accuracy: float | None = None
    census: tuple[Mapping[str, Any], ...] | None = None
    not_observed: str | None = None
    weights: tuple[Weight, ...] = ()
    gradients: Arrays = field(default_factory=dict)
    float32_gradients: Arrays = field(default_factory=dict)
    gradient_scale: float = 1.0
    starts: tuple[float, ...] = ()

    @classmethod
    def failed(cls, job: Job, error: str) -> Run:
        """A run of which there is only what went wrong."""
        return cls(job.label, job.backend, job.kind, error=error)

    def save(self, folder: Path) -> None:
        """Write it: JSON, and the gradients as NumPy's arrays."""
        arrays = {f"low/{name}": array for name, array in self.gradients.items()}
        arrays |= {f"float32/{name}": array for name, array in self.float32_gradients.items()}
        np.savez(folder / GRADIENTS, allow_pickle=False, **arrays)
        data = asdict(replace(self, gradients={}, float32_gradients={}))
        data["weights"] = [weight._asdict() for weight in self.weights]
        (folder / RUN).write_text(json.dumps(data), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Run:
        """The run that ``save`` wrote."""
        data = json.loads((folder / RUN).read_text(encoding="utf-8"))
        steps = {name: tuple(values) for name, values in data.pop("steps").items()}
        weights = tuple(
            Weight(**{**weight, "shape": tuple(weight["shape"])}) for weight in data.pop("weights")
        )
        for name in ("notes", "census", "starts"):
            data[name] = None if data[name] is None else tuple(data[name])
        with np.load(folder / GRADIENTS) as arrays:
            kept = {name: arrays[name] for name in arrays.files}
        return cls(
            **{
                **data,
                "steps": Steps(**steps),
                "weights": weights,
                "gradients": _under("low/", kept),
                "float32_gradients": _under("float32/", kept),
            }
        )


def _under(prefix: str, arrays: Arrays) -> Arrays:
    return {
        name.removeprefix(prefix): each for name, each in arrays.items() if name.startswith(prefix)
    }


def observed_policy(recipe: Recipe) -> Policy:
    """The policy that census and gradients are taken under: a run's first in low precision."""
    low = [policy for policy in recipe.policies if policy.level != "O0"]
    return low[0] if low else recipe.policy
