"""What the lens measures on NumPy, held against tensors dumped without it.

That ops are seen in the dtype that they ran in stands in ``test_ops.py``, beside what NumPy was given.
"""

import numpy as np
import pytest
from autograd.tracer import getval

import ampbridge as amp
from ampbridge import lens, workloads
from ampbridge_numpy import nn

WORKLOADS = ("digits-mlp", "digits-conv", "digits-transformer")
LAYERS = {
    "Linear": "linear",
    "Conv2d": "conv2d",
    "LayerNorm": "layer_norm",
    "BatchNorm2d": "batch_norm",
}
SCALE = 2.0**12

every_workload = pytest.mark.parametrize("name", WORKLOADS)


def made(name):
    workload = workloads.find(name)("numpy", 0)
    return workload, workload.first(1)[0]


@pytest.fixture
def outputs(monkeypatch):
    """By the id of a layer: what its calls returned, outside of any region."""
    found = {}
    for kind in LAYERS:
        original = getattr(nn, kind).forward

        def dumping(self, x, original=original):
            result = original(self, x)
            found.setdefault(id(self), []).append(np.array(getval(result)))
            return result

        monkeypatch.setattr(getattr(nn, kind), "forward", dumping)
    return found


def in_float16(values):
    """(largest, overflowing, to zero, subnormal) by NumPy's own casts."""
    values = np.asarray(values, np.float32)
    with np.errstate(over="ignore"):
        low = values.astype(np.float16)
    lost = (values != 0) & (low == 0)
    subnormal = (np.abs(values) < 2.0**-14) & (low != 0)
    return (np.abs(values).max(), np.isinf(low).mean(), lost.mean(), subnormal.mean())


def told(row):
    values = row.values
    return (values.largest, values.overflowing, values.flushed, values.subnormal)


@every_workload
def test_ranges_of_parameter_gradients_are_those_of_a_step(name):
    workload, batch = made(name)
    found = lens.ranges(workload.loss_fn, workload.model, *batch, scale=SCALE)
    rows = {row.name: told(row) for row in found.rows if row.kind == "parameter"}
    names = [name for name, _ in workload.model.named_parameters()]
    _, grads = amp.value_and_grad(workload.loss_fn, workload.model, *batch, policy="O0")
    dumped = dict(zip(names, grads, strict=True))
    assert rows == {name: in_float16(values * np.float32(SCALE)) for name, values in dumped.items()}


@every_workload
def test_ranges_of_outputs_are_those_of_what_layers_return(name, outputs):
    workload, batch = made(name)
    found = lens.ranges(workload.loss_fn, workload.model, *batch)
    outputs.clear()
    workload.loss_fn(workload.model, *batch)
    rows = {(row.name, row.layer): told(row) for row in found.rows if row.kind == "output"}
    checked = 0
    for layer_name, layer in workload.model.named_modules():
        if id(layer) in outputs:
            op = LAYERS[type(layer).__name__]
            values = np.concatenate([np.ravel(o) for o in outputs[id(layer)]])
            assert rows[op, layer_name] == in_float16(values)
            checked += 1
    assert checked >= 3
