"""What ``doctor`` reports, of a toy framework and without importing any real one."""

import json
import subprocess
import sys

import numpy as np
import pytest

import ampbridge as amp
from ampbridge.adapters import registry
from ampbridge.adapters.backend import Layer
from ampbridge.adapters.roles.probing import Device, Product
from ampbridge.reports.diagnosis import SMALL_PRODUCT, FrameworkReport


@pytest.fixture
def only_toy(toy, monkeypatch):
    monkeypatch.setattr(registry, "backend_names", lambda: ["toyframework"])
    monkeypatch.setattr(registry, "names_in_use", lambda: ["toyframework"])
    return toy


def test_a_framework_in_use_is_probed(only_toy):
    (report,) = amp.doctor().frameworks
    assert (report.name, report.status) == ("toyframework", "probed")
    assert [found.device for found in report.devices] == list(only_toy.Backend.hardware)
    assert [str(found.recommendation.policy) for found in report.devices] == ["O1:bfloat16", "O0"]


def test_the_recommendation_is_that_of_the_one_framework_s_first_device(only_toy):
    found = amp.doctor().recommendation
    assert found.policy == amp.Policy("O1", "bfloat16")
    assert found.reason.startswith("Toy 1 has compute capability 8.0")


def test_it_prints_what_it_found(only_toy, monkeypatch):
    monkeypatch.setattr(only_toy.Backend, "failures", {"bfloat16": "no kernel " + "x" * 200})
    text = amp.doctor().text(None)
    assert "toy:0   Toy 1 (compute capability 8.0)  runs     runs     no        O1:float16" in text
    assert "toyframework  toy:0   TF32      off" in text
    assert "no kernel xxx" in text
    assert max(map(len, text.splitlines())) < 300
    assert "recommended: Policy('O1', 'float16')\nbecause Toy 1 has compute capability 8.0" in text


IN_A_FRESH_PROCESS = """
import sys
import ampbridge as amp
report = amp.doctor()
numpy = next(f for f in report.frameworks if f.name == "numpy")
print(numpy.status, numpy.version, len(numpy.devices), report.recommendation)
print(*{"torch", "tensorflow", "keras", "paddle", "autograd", "jax", "flax"}.intersection(sys.modules))
"""


def test_frameworks_that_are_not_imported_are_told_by_their_packages():
    command = [sys.executable, "-c", IN_A_FRESH_PROCESS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"not imported {np.__version__} 0 None", ""]


def test_a_framework_that_is_not_installed(monkeypatch, toy):
    monkeypatch.setattr(registry, "backend_names", lambda: ["toyframework"])
    monkeypatch.setattr(registry, "_loaded", {})
    (report,) = amp.doctor().frameworks
    assert (report.status, report.version) == ("not installed", "")
    assert report.problem == "pip install 'ampbridge[toyframework]'"


def test_a_backend_that_cannot_be_loaded_is_reported(only_toy):
    def factory():
        raise ModuleNotFoundError("No module named 'scipy'", name="scipy")

    amp.register_backend("toyframework", factory)
    (report,) = amp.doctor().frameworks
    assert report.status == "failed"
    assert "pip install scipy" in report.problem


def test_a_report_goes_through_json_and_back(only_toy):
    (report,) = amp.doctor().frameworks
    assert FrameworkReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report


def test_the_whole_report_is_json(only_toy):
    data = json.loads(json.dumps(amp.doctor(only_toy.Model()).to_dict()))
    assert data["recommendation"]["policy"] == "O1:bfloat16"
    assert data["model"]["products"] == 2


# -- with a model


def findings(toy, *products, weight=None):
    model = toy.Model()
    model.products = list(products)
    if weight is not None:
        model.weight = weight
    report = amp.doctor(model)
    return report.recommendation, [(f.layer, f.what) for f in report.model.findings]


def test_sides_that_are_no_multiple_of_eight(only_toy):
    _, found = findings(
        only_toy, Product("body", "ToyLayer", 256, 100), Product("head", "ToyLayer", 250, 256)
    )
    assert found == [
        ("body", "100 outputs: no multiple of 8, slower on Tensor Cores; 104 is one"),
        ("head", "250 inputs: no multiple of 8, slower on Tensor Cores; 256 is one"),
    ]


@pytest.mark.parametrize(
    "product, small",
    [
        (Product("p", "P", 96, 96), True),
        (Product("p", "P", 104, 104), False),
        (Product("p", "P", 4096, 48), True),
        (Product("p", "P", 8, 256, window=9), False),
        (Product("p", "P", 8, 16, window=9), True),
    ],
)
def test_products_too_small_to_gain(only_toy, product, small):
    _, found = findings(only_toy, product)
    assert bool(found) == small
    inputs = product.inputs * product.window
    assert small == (inputs * product.outputs / (inputs + product.outputs) <= SMALL_PRODUCT)
    if small:
        size = f"{inputs} x {product.outputs}"
        assert found == [("p", f"{size}: too small to gain, the casts cost as much")]


def test_a_model_of_small_products_is_better_left_in_float32(only_toy):
    recommendation, _ = findings(only_toy, *[Product("p", "P", 32, 32)] * 3)
    assert recommendation.policy == amp.Policy("O0")
    assert recommendation.reason == (
        "none of the model's 3 matrix products (32 x 32, ...) is large enough to gain"
    )


def test_one_large_product_is_reason_enough(only_toy):
    recommendation, _ = findings(only_toy, Product("p", "P", 32, 32), Product("q", "P", 1024, 1024))
    assert recommendation.policy == amp.Policy("O1", "bfloat16")


def test_a_model_without_known_products_is_judged_by_the_device(only_toy):
    recommendation, found = findings(only_toy)
    assert recommendation.policy == amp.Policy("O1", "bfloat16")
    assert found == []


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_parameters_that_a_policy_does_nothing_for(only_toy, dtype):
    _, found = findings(only_toy, weight=np.zeros(1, dtype))
    ((layer, what),) = found
    assert layer == ""
    assert what.startswith(f"{dtype} parameters (1): ")


def test_the_low_parameters_of_a_decorated_model_are_meant(only_toy):
    model = only_toy.Model()
    amp.decorate(model, policy="O2")
    model.weight = np.zeros(1, np.float16)
    assert not any("float16" in finding.what for finding in amp.doctor(model).model.findings)


def test_a_model_that_is_not_built(only_toy, monkeypatch):
    def layers(self, model):
        return [Layer("", "ToyModel", model, {})]

    monkeypatch.setattr(only_toy.Backend, "layers", layers)
    _, found = findings(only_toy)
    assert found == [("", "no parameters yet: build it, or call it once")]


def test_findings_are_printed_by_layer(only_toy):
    text = str(amp.doctor(only_toy.Model()))
    assert "model: 2 matrix products, for toyframework on toy:0" in text
    assert "body   ToyLayer  100 outputs: no multiple of 8" in text


def test_a_model_with_nothing_to_say(only_toy):
    model = only_toy.Model()
    model.products = [Product("body", "ToyLayer", 256, 256)]
    assert "on toy:0; no findings" in str(amp.doctor(model))


def test_the_devices_of_a_framework_come_in_its_order(only_toy, monkeypatch):
    devices = (Device("cpu", "cpu", "Toy CPU"), Device("toy:0", "gpu", "Toy 1", (8, 0)))
    monkeypatch.setattr(only_toy.Backend, "hardware", devices)
    assert amp.doctor().recommendation.policy == amp.Policy("O0")
