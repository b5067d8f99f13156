"""The lens on NumPy: twelve planted faults located and cured."""

import autograd.numpy as anp
import pytest
from planted_faults import FAULTS, assert_located_and_cured

from ampbridge_numpy import nn


class NumpyKit:
    """``autograd.numpy``'s ops, looked up when they are called, and modules."""

    def __getattr__(self, op):
        return getattr(anp, op)

    @staticmethod
    def layer(forward, weights=(), parts=()):
        class Layer(nn.Module):
            def forward(self, x):
                return forward(self, x)

        layer = Layer()
        for name, values in dict(weights).items():
            setattr(layer, name, nn.Parameter(values))
        for name, part in dict(parts).items():
            setattr(layer, name, part)
        return layer

    @staticmethod
    def sum(x, axis=None):
        return anp.sum(x, axis=axis, keepdims=axis is not None)

    @staticmethod
    def mean(x, axis=None):
        return anp.mean(x, axis=axis, keepdims=axis is not None)


KIT = NumpyKit()
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of what is planted


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_located_and_cured(fault):
    assert_located_and_cured(KIT, fault)
