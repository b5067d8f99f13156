"""Devices, the dtypes that work on them, and what a model would gain from low precision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ampbridge.adapters import registry
from ampbridge.adapters.backend import Array, Backend, Layer, Model
from ampbridge.adapters.roles.probing import Device, Probe, Product
from ampbridge.errors import BackendLoadError
from ampbridge.errors.foreign_text import shortened
from ampbridge.policies.hardware import PROBED_DTYPES, Recommendation, recommendation
from ampbridge.policies.policy import Policy
from ampbridge.reports.plain_data import plain_fields
from ampbridge.reports.tables import aligned, paragraph
from ampbridge.reports.text_report import TextReport

Status = Literal["probed", "not imported", "not installed", "failed"]

TENSOR_CORE_MULTIPLE = 8
"""In 16 bits, the sides of a product should be multiples of this (NVIDIA's mixed-precision guide)."""

SMALL_PRODUCT = 48
"""A product with at most this many multiplications per number moved does not become faster.

The measure is ``inputs * outputs / (inputs + outputs)``; below it, the casts cost as much as the
product saves. Measured with torch 2.13 on one AMX core, O1 bfloat16, forward and
backward: at 512 rows 96 x 96 (48) takes 1.1 times as long as in float32 and 128 x 128 (64) 0.78 times;
at 4096 rows 64 x 64 (32) 0.71 times.
"""


@dataclass(frozen=True)
class ProbedDevice:
    """A device, the result of its probe, and the policy that suits it."""

    device: Device
    probe: Probe
    recommendation: Recommendation

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; ``from_dict`` reads them."""
        return {
            **self.device._asdict(),
            "failures": dict(self.probe.failures),
            "settings": dict(self.probe.settings),
            **_recommendation_to_dict(self.recommendation),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ProbedDevice:
        """The device from the result of ``to_dict``."""
        capability = data["compute_capability"]
        return cls(
            Device(
                data["name"],
                data["kind"],
                data["model"],
                (capability[0], capability[1]) if capability else None,
                tuple(data["bfloat16_instructions"]),
            ),
            Probe(data["failures"], data["settings"]),
            Recommendation(Policy.parse(data["policy"]), data["reason"]),
        )


def _recommendation_to_dict(found: Recommendation) -> dict[str, str]:
    return {"policy": str(found.policy), "reason": found.reason}


@dataclass(frozen=True)
class FrameworkReport:
    """One registered framework. If it was not probed, ``devices`` is empty and ``problem`` says why."""

    name: str
    status: Status
    version: str
    devices: tuple[ProbedDevice, ...] = ()
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; ``from_dict`` reads them."""
        return plain_fields(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FrameworkReport:
        """The report from the result of ``to_dict``."""
        return cls(**{**data, "devices": tuple(map(ProbedDevice.from_dict, data["devices"]))})


class Finding(NamedTuple):
    """A property of one layer that costs speed or accuracy."""

    layer: str
    kind: str
    what: str


@dataclass(frozen=True)
class ModelReport:
    """A model, checked for the device on which it would be trained."""

    framework: str
    device: str
    products: int
    findings: tuple[Finding, ...]
    recommendation: Recommendation

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return plain_fields(self) | {"recommendation": _recommendation_to_dict(self.recommendation)}


@dataclass(frozen=True)
class Report(TextReport):
    """The result of ``doctor``; prints as tables.

    ``recommendation`` is the model's, or that of the one probed framework, or None.
    """

    frameworks: tuple[FrameworkReport, ...]
    model: ModelReport | None = None

    @property
    def recommendation(self) -> Recommendation | None:
        if self.model is not None:
            return self.model.recommendation
        probed = [report.devices[0] for report in self.frameworks if report.devices]
        return probed[0].recommendation if len(probed) == 1 else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        found = self.recommendation
        return {
            "frameworks": [report.to_dict() for report in self.frameworks],
            "model": self.model and self.model.to_dict(),
            "recommendation": found and _recommendation_to_dict(found),
        }

    def text(self, width: int | None) -> str:
        return "\n\n".join(_sections(self, width))


def diagnose(model: Model | None = None) -> Report:
    """See ``doctor``."""
    backend = registry.backend(registry.framework_of(model)) if model is not None else None
    in_use = registry.names_in_use()
    frameworks = tuple(
        inspect(name) if name in in_use else _from_package(name)
        for name in registry.backend_names()
    )
    return Report(frameworks, None if backend is None else inspect_model(backend, model))


def inspect(name: str) -> FrameworkReport:
    """Probe the framework of that name and its devices. Imports the framework."""
    try:
        backend = registry.backend(name)
    except BackendLoadError as error:
        return not_probed(name, "failed", str(error))
    devices = tuple(_probed(backend, device) for device in backend.devices())
    return FrameworkReport(name, "probed", _version(name), devices)


def _probed(backend: Backend, device: Device) -> ProbedDevice:
    probe = backend.probe(device)
    return ProbedDevice(device, probe, recommendation(backend.name, device, probe))


def _from_package(name: str) -> FrameworkReport:
    if registry.backends()[name] == "not installed":
        return not_probed(name, "not installed", f"pip install 'ampbridge[{name}]'")
    return not_probed(name, "not imported", "`ampbridge doctor` probes it")


def not_probed(name: str, status: Status, problem: str) -> FrameworkReport:
    """The report of a framework from its package, without importing it."""
    return FrameworkReport(name, status, _version(name), problem=problem)


def _version(name: str) -> str:
    """The version of the distribution with the framework's root module; "" if unknown."""
    from importlib.metadata import packages_distributions, version

    distributions = packages_distributions().get(name, ())
    return version(distributions[0]) if distributions else ""


# -- models


def inspect_model(backend: Backend, model: Model) -> ModelReport:
    """Check ``model`` for the first device of its framework."""
    device = _probed(backend, backend.devices()[0])
    layers, products = backend.layers(model), backend.products(model)
    findings = [
        *_findings_about_dtypes(backend, layers),
        *(finding for product in products for finding in _findings_about_size(product)),
    ]
    if not any(layer.shapes for layer in layers):
        findings.append(Finding("", layers[0].kind, "no parameters yet: build it, or call it once"))
    advice = _for_model(device.recommendation, products)
    return ModelReport(backend.name, device.device.name, len(products), tuple(findings), advice)


def _for_model(by_device: Recommendation, products: Sequence[Product]) -> Recommendation:
    if products and by_device.policy.level != "O0" and all(map(_is_small, products)):
        sizes = f"{products[0].inputs} x {products[0].outputs}"
        reason = f"none of the model's {len(products)} matrix products ({sizes}, ...) is large enough to gain"
        return Recommendation(Policy("O0"), reason)
    return by_device


def _findings_about_size(product: Product) -> Iterator[Finding]:
    step = TENSOR_CORE_MULTIPLE
    for side, count in (("inputs", product.inputs), ("outputs", product.outputs)):
        if count % step:
            what = f"{count} {side}: no multiple of {step}, slower on Tensor Cores"
            yield Finding(product.layer, product.kind, f"{what}; {-(-count // step) * step} is one")
    if _is_small(product):
        size = f"{product.inputs * product.window} x {product.outputs}"
        what = f"{size}: too small to gain, the casts cost as much"
        yield Finding(product.layer, product.kind, what)


def _is_small(product: Product) -> bool:
    inputs = product.inputs * product.window
    return inputs * product.outputs <= SMALL_PRODUCT * (inputs + product.outputs)


def _findings_about_dtypes(backend: Backend, layers: Sequence[Layer]) -> Iterator[Finding]:
    """Parameters that a policy does nothing for, at the innermost layer that holds them.

    Those of a decorated model are low on purpose.
    """
    if backend.decoration(layers[0].layer, None) is not None:
        return
    innermost = {
        id(parameter): (layer, parameter)
        for layer in layers
        for parameter in backend.parameters(layer.layer)
    }
    found = [(layer, _bare_dtype(parameter)) for layer, parameter in innermost.values()]
    for (name, kind, dtype), count in Counter((at.name, at.kind, d) for at, d in found).items():
        if dtype in UNSUITABLE:
            yield Finding(name, kind, f"{dtype} parameters ({count}): {UNSUITABLE[dtype]}")


def _bare_dtype(parameter: Array) -> str:
    """``"float64"`` of torch.float64, paddle.float64, or a NumPy or Keras dtype."""
    return str(parameter.dtype).rpartition(".")[2]


_LOW = "updates under half a unit in the last place are lost; keep float32, and O2 casts them"
UNSUITABLE = {
    "float64": "no region casts them, and products with them run in float64",
    "bfloat16": _LOW,
    "float16": _LOW,
}


# -- as text


def _sections(report: Report, width: int | None) -> Iterator[str]:
    yield aligned(
        ("framework", "version", "device", "model", *PROBED_DTYPES, "favours"),
        (row for framework in report.frameworks for row in _device_rows(framework)),
        width,
    )
    settings = [
        (framework.name, device.device.name, name, shortened(value))
        for framework in report.frameworks
        for device in framework.devices
        for name, value in {**device.probe.settings, **device.probe.failures}.items()
    ]
    if settings:
        yield aligned(("framework", "device", "what", "state"), settings, width)
    if report.model is not None:
        yield _model_section(report.model, width)
    yield "\n".join(paragraph(line, width) for line in _advice(report))


def _device_rows(framework: FrameworkReport) -> Iterator[tuple[str, ...]]:
    if not framework.devices:
        unknown = [""] * len(PROBED_DTYPES)
        yield framework.name, framework.version, "", framework.status, *unknown, ""
    for device, probe, favoured in map(_parts, framework.devices):
        runs = ["no" if dtype in probe.failures else "runs" for dtype in PROBED_DTYPES]
        model = f"{device.model} ({_abilities(device)})" if _abilities(device) else device.model
        yield framework.name, framework.version, device.name, model, *runs, str(favoured.policy)


def _parts(found: ProbedDevice) -> tuple[Device, Probe, Recommendation]:
    return found.device, found.probe, found.recommendation


def _abilities(device: Device) -> str:
    if device.compute_capability is not None:
        return "compute capability {}.{}".format(*device.compute_capability)
    return ", ".join(device.bfloat16_instructions)


def _model_section(model: ModelReport, width: int | None) -> str:
    title = f"model: {model.products} matrix products, for {model.framework} on {model.device}"
    if not model.findings:
        return f"{title}; no findings"
    rows = [(f.layer or "(itself)", f.kind, f.what) for f in model.findings]
    return f"{title}\n{aligned(('layer', 'class', 'finding'), rows, width)}"


def _advice(report: Report) -> Iterable[str]:
    for framework in report.frameworks:
        if framework.problem:
            what = f"{framework.status}: {framework.problem.partition(chr(10))[0]}"
            yield f"{framework.name} {'' if framework.status == 'failed' else 'is '}{what}"
    if report.recommendation is not None:
        yield f"recommended: {report.recommendation.policy!r}"
        yield f"because {report.recommendation.reason}"
        return
    for framework in report.frameworks:
        for device in framework.devices[:1]:
            found = device.recommendation
            yield f"{framework.name}: {found.policy!r}, because {found.reason}"
