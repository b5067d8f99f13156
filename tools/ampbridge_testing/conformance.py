"""The suite as one class, and the promises about the adapter as a whole."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from ampbridge.adapters import registry
from ampbridge.adapters.backend import Backend
from ampbridge.adapters.roles.observing import Observing
from ampbridge.adapters.roles.probing import Probing
from ampbridge.adapters.roles.saving import Saving
from ampbridge_testing.copies import CopyConformance
from ampbridge_testing.decorating import (
    KeepConformance,
    LayersConformance,
    O2Conformance,
    OutputConformance,
    UndecorateConformance,
)
from ampbridge_testing.executing import ExecutionConformance
from ampbridge_testing.first_step import FirstStepConformance
from ampbridge_testing.gradients import GradientConformance
from ampbridge_testing.growth import GrowthConformance
from ampbridge_testing.interruption import InterruptionConformance
from ampbridge_testing.observing import ObservingConformance
from ampbridge_testing.options import OptionsConformance
from ampbridge_testing.parts import ArgumentConformance, BatchConformance, OutsideConformance
from ampbridge_testing.reference import example
from ampbridge_testing.regions import CastConformance, RegionConformance
from ampbridge_testing.roles import claims, skip_if_not_claimed
from ampbridge_testing.scaler import GradScalerConformance, StoredGradientsConformance
from ampbridge_testing.schedules import ScheduleConformance
from ampbridge_testing.shared import Conformance
from ampbridge_testing.threads import ThreadConformance
from ampbridge_testing.training_state import TrainingStateConformance
from ampbridge_testing.updates import (
    ClipConformance,
    ScaleStoreConformance,
    StepOrSkipConformance,
    UnscaleConformance,
)

METHODS = [name for name in dir(Backend) if name[0] != "_" and callable(getattr(Backend, name))]


class AdapterConformance(Conformance):
    """Promises of the adapter as a whole."""

    @pytest.mark.parametrize("method", METHODS)
    def test_a_method_takes_the_arguments_of_the_protocol(self, method: str) -> None:
        _, *expected = arguments_of(getattr(Backend, method))  # but for self
        assert arguments_of(getattr(self.harness.backend, method)) == expected

    def test_the_name_is_the_framework_s_root_module(self) -> None:
        assert self.harness.backend.name == self.harness.frameworks[0]

    def test_it_says_whether_its_users_expect_a_compiled_step(self) -> None:
        assert isinstance(self.harness.backend.compiles_by_default, bool)

    def test_it_is_made_without_arguments(self) -> None:
        backend = self.harness.backend
        assert type(backend)().name == backend.name

    def test_it_is_found_from_its_arrays_models_and_optimizers(self) -> None:
        h = self.harness
        model = h.model(example().weights)
        for thing in (model, h.optimizer(model, "momentum", 0.1), h.array([1.0])):
            assert registry.backend(thing) is h.backend

    def test_it_imports_no_other_framework(self) -> None:
        """In a process of its own: regions of every level, devices, a report, a step that is saved."""
        backend = self.harness.backend
        own = {root.partition(".")[0] for root in self.harness.frameworks}
        others = sorted(set(registry.backend_names()) - own - registry.CORE_DEPENDENCIES)
        program = (
            "import importlib, sys, warnings\n"
            "from ampbridge import Policy\n"
            "warnings.simplefilter('ignore')  # that it is simulated here\n"
            f"for framework in {self.harness.frameworks!r}: importlib.import_module(framework)\n"
            "brought = set(sys.modules)  # TensorFlow itself imports JAX\n"
            f"module = importlib.import_module({type(backend).__module__!r})\n"
            f"backend = getattr(module, {type(backend).__qualname__!r})()\n"
            "for level in ('O0', 'O1', 'O2'):\n"
            "    with backend.autocast(Policy(level)): pass\n"
            f"{self.training_program()}"
            f"print([name for name in {others!r} if name in sys.modules and name not in brought])\n"
        )
        result = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (result.returncode, result.stdout.strip()) == (0, "[]"), result.stderr

    def training_program(self) -> str:
        """A step at O2, its census and its checkpoint, as far as there are these, as code."""
        harness, backend = type(self.harness), self.harness.backend
        return textwrap.dedent(
            f"""
            import tempfile
            import ampbridge_lens as lens
            from ampbridge import register_backend, train_step
            from ampbridge_testing.reference import example
            from {harness.__module__} import {harness.__qualname__}
            h, given = {harness.__qualname__}(), example()
            register_backend(h.backend.name, type(h.backend))
            model = h.layered(given.weights)
            loss_fn = lambda model, x, y: h.mean_squared_error(model(x), y)
            policy = Policy('O2', 'bfloat16')
            step = train_step(loss_fn, model, h.optimizer(model, 'momentum', 0.1), policy=policy)
            step(given.x, given.target)
            if {claims(backend, Saving)}:
                step.save(tempfile.mkdtemp())
            if {claims(backend, Probing)}:
                h.backend.explain(policy), h.backend.devices()
            if {claims(backend, Observing) and claims(backend, Probing)}:
                lens.census(loss_fn, h.layered(given.weights), given.x, given.target, policy=policy)
            """
        )


@pytest.mark.filterwarnings("ignore::ampbridge.errors.SimulationWarning")
class BackendConformance(
    AdapterConformance,
    CastConformance,
    RegionConformance,
    GradientConformance,
    GrowthConformance,
    UnscaleConformance,
    ClipConformance,
    StepOrSkipConformance,
    ScaleStoreConformance,
    GradScalerConformance,
    StoredGradientsConformance,
    TrainingStateConformance,
    LayersConformance,
    O2Conformance,
    KeepConformance,
    OutputConformance,
    UndecorateConformance,
    ScheduleConformance,
    ExecutionConformance,
    ObservingConformance,
    OutsideConformance,
    BatchConformance,
    ArgumentConformance,
    OptionsConformance,
    FirstStepConformance,
    InterruptionConformance,
    CopyConformance,
    ThreadConformance,
):
    """Everything that a backend promises. Subclass it and give it a harness:

        class TestMyBackend(BackendConformance):
            harness = MyHarness()

    Tests of roles and methods that the adapter leaves out are skipped as "not claimed".
    A test that cannot hold may be overridden, with ``@pytest.mark.xfail(reason=...)`` alone.
    """

    @pytest.fixture(autouse=True)
    def _backend_under_test(
        self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The public functions find the harness's backend, registered or not."""
        backend = self.harness.backend
        skip_if_not_claimed(request.function, backend)
        monkeypatch.setitem(registry._registered, backend.name, lambda: backend)
        monkeypatch.setitem(registry._loaded, backend.name, backend)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Tests that take ``compiled`` run eager, and compiled where the backend compiles."""
        if "compiled" in metafunc.fixturenames:
            choices = (
                {"eager": False, "compiled": True} if self.harness.compiles else {"eager": False}
            )
            metafunc.parametrize("compiled", choices.values(), ids=choices.keys())

    def test_the_suite_is_run_whole(self) -> None:
        unexplained = [
            name
            for name in dir(BackendConformance)
            if name.startswith("test_")
            and getattr(type(self), name) is not getattr(BackendConformance, name)
            and not has_xfail_reason(getattr(type(self), name))
        ]
        assert not unexplained, f"overridden without @pytest.mark.xfail(reason=...): {unexplained}"


def arguments_of(method: Any) -> list[tuple[str, Any, Any]]:
    """Name, kind and default of each argument."""
    parameters = inspect.signature(method).parameters.values()
    return [(p.name, p.kind, p.default) for p in parameters]


def has_xfail_reason(test: Any) -> bool:
    marks = getattr(test, "pytestmark", [])
    return any(mark.name == "xfail" and mark.kwargs.get("reason") for mark in marks)
