"""Policies as Keras' dtype policies: read back, and in layers."""

import keras
import numpy as np
import pytest

import ampbridge as amp
from ampbridge import Policy

# By Keras' documentation: name -> (compute dtype, variable dtype)
CASES = {
    "float32": (Policy("O0"), "float32", "float32"),
    "mixed_float16": (Policy("O2", lists="tensorflow"), "float16", "float32"),
    "mixed_bfloat16": (Policy("O2", "bfloat16", lists="tensorflow"), "bfloat16", "float32"),
    "float16": (Policy("O2", lists="tensorflow", masters=None), "float16", "float16"),
    "bfloat16": (
        Policy("O2", "bfloat16", lists="tensorflow", masters=None),
        "bfloat16",
        "bfloat16",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_there(name):
    policy, compute, variables = CASES[name]
    native = policy.to_native("tensorflow")
    assert isinstance(native, keras.DTypePolicy)
    assert (native.name, native.compute_dtype, native.variable_dtype) == (name, compute, variables)


@pytest.mark.parametrize("name", CASES)
def test_a_layer_has_the_dtypes_of_the_policy(name):
    policy, compute, variables = CASES[name]
    layer = keras.layers.Dense(2, dtype=policy.to_native("tensorflow"))
    assert layer(np.ones((1, 3), np.float32)).dtype == compute == policy.compute_dtype
    assert layer.kernel.dtype == variables == policy.variable_dtype


@pytest.mark.parametrize("name", CASES)
def test_back(name):
    assert Policy.from_native(keras.DTypePolicy(name)) == CASES[name][0]


def test_lists_and_regions_may_be_given_up():
    native = Policy("O1", "bfloat16", deny=["exp"]).to_native(
        "tensorflow", drop=["level", "lists", "deny"]
    )
    assert native.name == "mixed_bfloat16"


def test_what_is_no_policy():
    with pytest.raises(amp.ArgumentTypeError, match=r"Dense is no keras.DTypePolicy"):
        Policy.from_native(keras.layers.Dense(1))


@pytest.mark.parametrize("name", ["float64", "int8_from_mixed_bfloat16"])
def test_what_no_policy_says(name):
    with pytest.raises(amp.UnsupportedError, match="No policy says what"):
        Policy.from_native(keras.dtype_policies.get(name))
