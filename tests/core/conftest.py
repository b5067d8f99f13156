"""A backend for a framework that does not exist: the core is tested without any real one."""

import sys
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest

import ampbridge as amp
from ampbridge.adapters import registry
from ampbridge.adapters.backend import FINITE, INF, NAN, Layer
from ampbridge.adapters.roles.probing import (
    Device,
    Explanation,
    FeatureTreatment,
    OpTreatment,
    Probe,
    Product,
)
from ampbridge.adapters.roles.saving import OptimizerState
from ampbridge.checkpoints.weights import Weight
from ampbridge.policies import op_table

sys.path.insert(0, str(Path(__file__).parent))  # for published_rules; pytest adds no paths


class ToyModel:
    """One weight; the gradient of its loss is whatever ``slope`` says.

    ``decorations`` lists what the backend was told, None for an ``undecorate``.
    """

    __module__ = "toyframework.nn"

    def __init__(self, slope=1.0):
        self.weight, self.slope = np.zeros(1, np.float32), slope
        self.parts = {"body": ToyLayer(), "head": ToyLayer()}
        self.decorations = [None]
        self.products = [Product("body", "ToyLayer", 256, 100), Product("head", "ToyLayer", 256, 8)]


class ToyLayer:
    """A part that computes nothing."""

    __module__ = "toyframework.nn"


class ToyOptimizer:
    """Plain gradient descent that keeps its gradient, as torch's does."""

    __module__ = "toyframework.optim"

    def __init__(self, model):
        self.model, self.gradient, self.steps = model, None, 0


class ToyLoss:
    """A loss object of the framework."""

    __module__ = "toyframework.losses"

    def __call__(self, prediction, target):
        raise NotImplementedError


class ToyRates:
    """A scheduler of the framework."""

    __module__ = "toyframework.rates"

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        raise NotImplementedError


class ToyTrainer:
    """What holds a model, and is none."""

    __module__ = "toyframework.trainer"

    def __init__(self, network):
        self.network = network


class ToyScaler:
    """The framework's own scaler, which keeps what it was made from."""

    __module__ = "toyframework.amp"

    def __init__(self, state):
        self.state = state


class ToyArray(np.ndarray):
    """An array that belongs to the framework."""

    __module__ = "toyframework"


class ToyBackend(amp.Backend):
    """The smallest complete backend."""

    name = "toyframework"
    compiles_by_default = False
    hardware = (Device("toy:0", "gpu", "Toy 1", (8, 0)), Device("cpu", "cpu", "Toy CPU"))
    failures = MappingProxyType({})
    examples = MappingProxyType(
        {
            "model": "ToyModel()",
            "optimizer": "ToyOptimizer(model)",
            "float32 model": "ToyModel()",
            "loss_fn": "def loss_fn(): ...",
        }
    )

    def kind(self, obj):
        kinds = {
            ToyModel: "model",
            ToyOptimizer: "optimizer",
            ToyLoss: "loss",
            ToyRates: "scheduler",
        }
        return next((name for kind, name in kinds.items() if isinstance(obj, kind)), None)

    def autocast(self, policy):
        return nullcontext()

    def cast(self, x, dtype):
        return np.asarray(x, dtype)

    def layers(self, model):
        return [
            Layer("", "ToyModel", model, {"weight": (1,)}),
            *(Layer(name, "ToyLayer", part, {}) for name, part in model.parts.items()),
        ]

    def decorate(self, model, optimizer, decoration):
        assert model.decorations[-1] is None
        model.decorations.append(decoration)

    def undecorate(self, model, optimizer):
        if model.decorations[-1] is not None:
            model.decorations.append(None)

    def decoration(self, model, optimizer):
        return model.decorations[-1]

    def parameters(self, owner):
        owner = getattr(owner, "model", owner)
        return [owner.weight] if hasattr(owner, "weight") else []

    def parameter_names(self, model):
        return ["weight"]

    def gradients(self, loss_fn, model, batch, policy, factor, total, optimizer=None):
        loss, aux = loss_fn(model, *batch)
        gradient = np.array([model.slope], np.float32) * np.float32(factor or 1.0)
        return loss, aux, [gradient if total is None else total[0] + gradient]

    def stored_gradients(self, optimizer):
        if optimizer.gradient is not None:
            optimizer.gradient = optimizer.gradient.astype(np.float32, copy=False)
        return [optimizer.gradient]

    def unscale(self, grads, scale):
        """In place, where they are in float32 already."""
        joined = np.concatenate(list(grads))
        found = INF if np.isinf(joined).any() else NAN if np.isnan(joined).any() else FINITE
        if scale is None:
            return grads, found
        wide = [g.astype(np.float32, copy=False) for g in grads]
        for gradient in wide:
            gradient /= np.float32(scale)
        return wide, found

    def clip(self, grads, max_norm):
        norm = float(np.linalg.norm(np.concatenate(list(grads))))
        return [g * min(1.0, max_norm / norm) for g in grads], norm

    def clip_values(self, grads, limit):
        return [g.clip(-limit, limit) for g in grads]

    def step(self, optimizer, parameters, grads):
        parameters[0] -= grads[0]
        optimizer.steps += 1

    def compile(self, build, loss_fn):
        return build(loss_fn)

    def weights(self, model):
        return [Weight("weight", "dense.kernel", "o", (1,))]

    def read_weights(self, model):
        return {"weight": model.weight.copy()}

    def write_weights(self, model, values):
        model.weight[...] = values["weight"]

    def read_optimizer(self, optimizer, model):
        return OptimizerState({"weight/slot": np.array([7.0])}, {"steps": optimizer.steps})

    def write_optimizer(self, optimizer, model, state):
        optimizer.steps = state.settings["steps"]

    def native_scaler(self, state, optimizer):
        return ToyScaler(state)

    def native_scaler_state(self, scaler):
        return scaler.state

    def devices(self):
        return self.hardware

    def probe(self, device):
        return Probe(self.failures, {"TF32": "off"})

    def products(self, model):
        return model.products

    def explain(self, policy):
        """Every op is cast by the framework, but the softmax, which it has not."""
        ops = {
            op: OpTreatment("native", policy.category(op), policy.compute_dtype)
            for op in op_table.ops()
        }
        ops["softmax"] = OpTreatment("absent", None, "", "it has none")
        features = {"O1": FeatureTreatment("native", "its own region")}
        return Explanation("toy:0", ops, features)


@pytest.fixture
def toy(monkeypatch):
    """The framework "toyframework", registered for one test."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    monkeypatch.setattr(registry, "_modules", dict(registry._modules))
    monkeypatch.setattr(registry, "_loaded", dict(registry._loaded))
    amp.register_backend("toyframework", ToyBackend)

    def array(value, dtype=np.float32):
        return np.array(value, dtype).view(ToyArray)

    return SimpleNamespace(
        Model=ToyModel,
        Optimizer=ToyOptimizer,
        Loss=ToyLoss,
        Rates=ToyRates,
        Trainer=ToyTrainer,
        Backend=ToyBackend,
        array=array,
    )
