"""Layers and functions: values from torch, derivatives against finite differences in float64.

The numbers from torch 2.13 were printed by its own functions, on inputs that are sines and cosines
of 1, 2, 3, ... so that they can be made again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd
import ml_dtypes
import numpy as np
import pytest

from ampbridge import AmpBridgeError, ArgumentError
from ampbridge_numpy import nn


def sines(*shape: int) -> np.ndarray:
    return np.sin(np.arange(1, np.prod(shape) + 1)).reshape(shape).astype(np.float32)


def cosines(*shape: int) -> np.ndarray:
    return np.cos(np.arange(1, np.prod(shape) + 1)).reshape(shape).astype(np.float32)


def agrees(actual: Any, expected: Any, tolerance: float = 2e-6) -> None:
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


# -- values


STEPS = np.arange(-4, 5, dtype=np.float32) / np.float32(1.5)


def test_gelu() -> None:
    expected = [
        -0.0102144,
        -0.0455003,
        -0.1216149,
        -0.1683283,
        0,
        0.4983383,
        1.2117184,
        1.9544997,
        2.6564522,
    ]
    agrees(nn.gelu(STEPS), expected)


def test_silu() -> None:
    expected = [
        -0.1732511,
        -0.2384058,
        -0.2781447,
        -0.2261624,
        0,
        0.4405043,
        1.0551887,
        1.761594,
        2.4934158,
    ]
    agrees(nn.silu(STEPS), expected)


def test_sigmoid() -> None:
    expected = [
        0.0649692,
        0.1192029,
        0.2086085,
        0.3392436,
        0.5,
        0.6607563,
        0.7913915,
        0.880797,
        0.9350309,
    ]
    agrees(nn.sigmoid(STEPS), expected)
    assert nn.sigmoid(np.array([-1e4, 1e4])).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_relu_and_its_gradient_at_the_edges(dtype: Any) -> None:
    x = np.array([-np.inf, -2, -1e-7, -0.0, 0, 1e-7, 2, np.inf, np.nan, -np.nan]).astype(dtype)
    expected = np.array([0, 0, 0, 0, 0, 1e-7, 2, np.inf, np.nan, np.nan]).astype(dtype)
    vjp, result = autograd.make_vjp(nn.relu)(x)
    np.testing.assert_array_equal(result.astype(float), expected.astype(float))
    assert vjp(np.full(10, np.inf, dtype)).tolist()[:7] == [0, 0, 0, 0, 0, np.inf, np.inf]
    assert (result.dtype, vjp(x).dtype) == (x.dtype, x.dtype)


def test_softmax_of_large_numbers() -> None:
    agrees(nn.softmax(np.array([[1000.0, 1000.0, 999.0]])), [[0.4223188, 0.4223188, 0.1553624]])
    agrees(nn.log_softmax(np.array([1000.0, 0.0])), [0.0, -1000.0])


def test_cross_entropy_by_hand() -> None:
    """The logits are logarithms of odds: 1:1:2 and 3:1."""
    logits = np.log(np.array([[1.0, 1.0, 2.0], [3.0, 1.0, 1e-30]]))
    expected = -(np.log(2 / 4) + np.log(3 / 4)) / 2
    agrees(nn.cross_entropy(logits, np.array([2, 0])), expected)


def test_mse_loss_by_hand() -> None:
    assert nn.mse_loss(np.array([[1.0, 2.0]]), np.array([[0.0, 5.0]])) == (1 + 9) / 2


def test_conv2d_with_stride_and_padding() -> None:
    layer = nn.Conv2d(2, 3, 3, stride=2, padding=1)
    layer.weight[...], layer.bias[...] = cosines(3, 2, 3, 3), [0.1, 0.2, 0.3]
    expected = [
        [[1.8088768, -4.099847], [-1.664461, 0.4453738]],
        [[-1.9483731, -0.9323799], [-0.5278233, 5.112465]],
        [[-4.2460904, 3.004388], [1.1032733, 6.442192]],
    ]
    agrees(layer(sines(1, 2, 4, 4))[0], expected)


def test_gradients_of_conv2d() -> None:
    def loss(x: Any, weight: Any, bias: Any) -> Any:
        y = nn.conv2d(x, weight, bias, stride=2, padding=1)
        return (y * np.arange(12, dtype=np.float32).reshape(y.shape)).sum()

    inputs = sines(1, 2, 4, 4), cosines(3, 2, 3, 3), np.float32([0.1, 0.2, 0.3])
    to_x, to_weight, to_bias = (autograd.grad(loss, i)(*inputs) for i in range(3))
    agrees(
        to_x[0, 0],
        [
            [-10.030046, -13.159057, -11.266556, -0.5188024],
            [21.753359, 28.10142, 24.20163, -1.514936],
            [-12.503067, -15.831415, -13.739576, 1.4499254],
            [13.588949, 16.9845, 15.090212, 1.00018],
        ],
    )
    agrees(
        to_weight[0, 0],
        [
            [-0.8382465, 0.0531112, 2.4092438],
            [-0.722766, -2.0346136, -3.4545636],
            [2.6924067, 3.4481843, 2.106863],
        ],
    )
    assert to_bias.tolist() == [6.0, 22.0, 38.0]


def test_pooling() -> None:
    image = sines(1, 1, 5, 5)
    agrees(nn.max_pool2d(image, 3, 2)[0, 0], [[0.9893582, 0.9906074], [0.8366556, 0.9906074]])
    agrees(nn.avg_pool2d(image, 3, 2)[0, 0], [[0.2380468, 0.1493235], [-0.3483445, 0.0543052]])


def test_batch_norm_in_training_and_evaluation() -> None:
    layer, x = nn.BatchNorm2d(2), sines(2, 2, 2, 2)
    expected = [
        [[1.3098085, 1.4076341], [0.2996976, -0.9953694]],
        [[-1.8680875, -0.8373851], [0.5829818, 1.0871346]],
    ]
    agrees(layer(x)[0], expected)
    agrees(layer.running_mean, [-0.0066672, 0.0272646])
    agrees(layer.running_var, [0.9549384, 0.9496713])
    layer.eval()
    expected = [
        [[0.8679139, 0.9373218], [0.1512332, -0.7676259]],
        [[-1.0119781, -0.3146999], [0.6461896, 0.9872529]],
    ]
    agrees(layer(x)[0], expected)
    agrees(layer.running_mean, [-0.0066672, 0.0272646])


def test_batch_norm_of_rows_and_of_sequences() -> None:
    layer, x = nn.BatchNorm1d(2), sines(4, 2)
    expected = [
        [0.9581867, 0.9207192],
        [-0.0414548, -1.2906643],
        [-1.6115961, -0.6570374],
        [0.6948642, 1.0269824],
    ]
    agrees(layer(x), expected)
    agrees([layer.running_mean, layer.running_var], [[0.0170, 0.0216], [0.9654, 0.9757]], 5e-5)
    agrees(layer.eval()(x)[0], [0.8391, 0.8987], 5e-5)
    layer, x = nn.BatchNorm1d(2), sines(2, 2, 3)
    expected = [[0.6135139, 0.8408063, -1.7334239], [-0.3057368, -1.1029537, 1.5771925]]
    agrees(layer(x)[0], expected)
    agrees([layer.running_mean, layer.running_var], [[0.0658, -0.0679], [0.9107, 0.9077]], 5e-5)


def test_tanh() -> None:
    agrees(nn.Tanh()(STEPS), np.tanh(STEPS.astype(np.float64)))


def test_dropout_in_training_and_evaluation() -> None:
    layer, x = nn.Dropout(0.25, rng=0), np.ones((100, 100), np.float32)
    dropped = layer(x)
    assert dropped.dtype == np.float32
    assert set(np.unique(dropped)) == {np.float32(0), np.float32(1) / np.float32(0.75)}
    assert abs((dropped == 0).mean() - 0.25) < 0.02  # four standard deviations
    assert not np.array_equal(layer(x), dropped)
    assert np.array_equal(nn.Dropout(0.25, rng=0)(x), dropped)
    assert layer.eval()(x) is x
    assert nn.Dropout(0)(x) is x
    gradient = autograd.grad(lambda x: nn.Dropout(0.25, rng=0)(x).sum())(x)
    assert np.array_equal(gradient, dropped)


@pytest.mark.parametrize("p", [-0.1, 1, 2])
def test_a_probability_of_dropout_that_is_none(p: float) -> None:
    with pytest.raises(ArgumentError, match=r"Dropout got p=.*\nHint: nn.Dropout\(0.5\)"):
        nn.Dropout(p)


def test_layer_norm() -> None:
    layer = nn.LayerNorm(2)
    layer.weight[...], layer.bias[...] = [2.0, 0.5], [0.1, -0.1]
    expected = [[-1.8913641, 0.3978402], [2.0999503, -0.5999876]]
    agrees(layer(sines(2, 2)), expected)


def attention() -> nn.MultiHeadAttention:
    layer = nn.MultiHeadAttention(4, 2)
    maps = layer.query, layer.key, layer.value, layer.output
    for linear, weight, bias in zip(maps, sines(4, 4, 4), cosines(4, 4), strict=True):
        linear.weight[...], linear.bias[...] = weight, bias * np.float32(0.1)
    return layer


TOKENS = np.sin(np.arange(1, 13) * 0.7).reshape(1, 3, 4).astype(np.float32)


def test_multi_head_attention() -> None:
    expected = [
        [0.0704249, 0.0143813, -0.0548844, -0.0736896],
        [0.0667672, 0.0101476, -0.0558017, -0.0704471],
        [0.0699689, 0.0143135, -0.0545017, -0.0732083],
    ]
    agrees(attention()(TOKENS)[0], expected)


def test_causal_attention() -> None:
    expected = [
        [0.109836, 0.0064755, -0.1028386, -0.1176033],
        [0.0740232, 0.0286803, -0.0430312, -0.07518],
        [0.0699689, 0.0143135, -0.0545017, -0.0732083],
    ]
    agrees(attention()(TOKENS, is_causal=True)[0], expected)
    agrees(attention()(TOKENS, mask=np.tri(3, dtype=bool))[0], expected)


def test_a_mask_joins_the_causal_one() -> None:
    """With the first key hidden from the third query, it sees the second and the third."""
    mask = np.array([[True, True, True], [True, True, True], [False, True, True]])
    both = attention()(TOKENS, mask=mask, is_causal=True)[0]
    seen = attention()(TOKENS, mask=mask & np.tri(3, dtype=bool))[0]
    agrees(both, seen)
    agrees(both[:2], attention()(TOKENS, is_causal=True)[0, :2])


def test_gradient_of_multi_head_attention() -> None:
    def loss(x: Any) -> Any:
        return (attention()(x) * np.arange(12, dtype=np.float32).reshape(1, 3, 4)).sum()

    expected = [
        [-3.3935328, 1.050661, 2.0200171, -3.6914027],
        [-3.4699159, 1.0803488, 2.0575898, -3.7702086],
        [-3.212234, 0.8275141, 2.1304355, -3.6126049],
    ]
    agrees(autograd.grad(loss)(TOKENS)[0], expected, 1e-5)


# -- derivatives


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


LABELS, INDICES = np.array([1, 0, 2]), np.array([[0, 2], [2, 2]])
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "linear": (nn.linear, (numbers(2, 3, 4), numbers(4, 5), numbers(5))),
    "conv2d": (
        lambda x, w, b: nn.conv2d(x, w, b, stride=2, padding=1),
        (numbers(2, 2, 5, 4), numbers(3, 2, 3, 2), numbers(3)),
    ),
    "embedding": (lambda w: nn.embedding(INDICES, w), (numbers(3, 2),)),
    "layer_norm": (nn.layer_norm, (numbers(2, 3, 4), numbers(3, 4), numbers(3, 4))),
    "batch_norm": (nn.batch_norm, (numbers(3, 2, 2, 2), numbers(2), numbers(2))),
    "batch_norm by given statistics": (
        lambda x, w, b: nn.batch_norm(x, w, b, np.float32([0.1, 0.2]), np.float32([0.5, 2.0])),
        (numbers(3, 2, 2, 2), numbers(2), numbers(2)),
    ),
    "relu": (nn.relu, (numbers(3, 4),)),
    "gelu": (nn.gelu, (numbers(3, 4),)),
    "silu": (nn.silu, (numbers(3, 4),)),
    "sigmoid": (nn.sigmoid, (numbers(3, 4),)),
    "tanh": (nn.tanh, (numbers(3, 4),)),
    "batch_norm of rows": (nn.batch_norm, (numbers(3, 2), numbers(2), numbers(2))),
    "softmax": (nn.softmax, (numbers(3, 4),)),
    "softmax of columns": (lambda x: nn.softmax(x, 0), (numbers(3, 4),)),
    "log_softmax": (nn.log_softmax, (numbers(3, 4),)),
    "cross_entropy": (lambda x: nn.cross_entropy(x, LABELS), (numbers(3, 4),)),
    "mse_loss": (nn.mse_loss, (numbers(3, 4), numbers(3, 4, seed=1))),
    "max_pool2d": (lambda x: nn.max_pool2d(x, 3, 2), (numbers(2, 2, 6, 5),)),
    "avg_pool2d": (lambda x: nn.avg_pool2d(x, 3, 2), (numbers(2, 2, 6, 5),)),
    "flatten": (nn.flatten, (numbers(2, 3, 4),)),
    "scaled_dot_product_attention": (
        lambda q, k, v: nn.scaled_dot_product_attention(q, k, v, is_causal=True),
        (numbers(2, 3, 4), numbers(2, 3, 4, seed=1), numbers(2, 3, 4, seed=2)),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_are_those_of_finite_differences(name: str) -> None:
    function, inputs = FUNCTIONS[name]
    cotangent = numbers(*np.shape(function(*inputs)), seed=9)

    def loss(*arrays: Any) -> Any:
        return (function(*arrays) * cotangent).sum()

    for argument, x in enumerate(inputs):
        agrees(autograd.grad(loss, argument)(*inputs), differences(loss, inputs, argument, x), 2e-6)


def differences(
    loss: Callable[..., float], inputs: tuple[np.ndarray, ...], argument: int, x: np.ndarray
) -> np.ndarray:
    step, gradient = 1e-5, np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        values = []
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * step
            values.append(loss(*inputs[:argument], moved, *inputs[argument + 1 :]))
        gradient[index] = (values[0] - values[1]) / (2 * step)
    return gradient


@pytest.mark.parametrize("function", [nn.relu, nn.gelu, nn.silu, nn.softmax, nn.log_softmax])
def test_second_derivatives(function: Callable[[Any], Any]) -> None:
    """Of activations and softmax, for penalties on gradients."""
    x, cotangent = numbers(3, 4), numbers(3, 4, seed=1)

    def slope(x: Any) -> Any:
        gradient = autograd.grad(lambda v: (function(v) * cotangent).sum())(x)
        return (gradient * gradient).sum()

    agrees(autograd.grad(slope)(x), differences(slope, (x,), 0, x), 2e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float32_stays_float32_forward_and_backward(name: str) -> None:
    """Autograd lets float64 through where NumPy makes it; one such op would slow the rest down."""
    function, inputs = FUNCTIONS[name]
    single = tuple(x.astype(np.float32) for x in inputs)
    for argument in range(len(single)):
        vjp, result = autograd.make_vjp(function, argument)(*single)
        assert result.dtype == np.float32
        assert vjp(np.ones(np.shape(result), np.float32)).dtype == np.float32


# -- modules


class Block(nn.Module):
    def __init__(self) -> None:
        self.scale = nn.Parameter([1.0, 2.0])
        self.maps = [nn.Linear(2, 3, rng=0), nn.Linear(3, 2, bias=False, rng=1)]
        self.norm = nn.LayerNorm(2)

    def forward(self, x: Any) -> Any:
        for linear in self.maps:
            x = linear(x)
        return self.norm(x) * self.scale


def test_parameters_come_in_order_under_dotted_names() -> None:
    names = [name for name, _ in Block().named_parameters()]
    assert names == [
        "scale",
        "maps.0.weight",
        "maps.0.bias",
        "maps.1.weight",
        "norm.weight",
        "norm.bias",
    ]
    sequence = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    assert [p.shape for p in sequence.parameters()] == [(2, 3), (3,), (3, 1), (1,)]


def test_parameters_are_the_float32_arrays_themselves() -> None:
    layer = nn.Linear(2, 3)
    weight, bias = layer.parameters()
    assert weight is layer.weight
    assert weight.dtype == bias.dtype == np.float32
    weight[...] = 0
    bias[...] = [1, 2, 3]
    assert layer(np.ones((1, 2), np.float32)).tolist() == [[1, 2, 3]]


def test_a_shared_parameter_comes_once() -> None:
    layer = nn.Linear(2, 2)
    assert len(nn.Sequential(layer, nn.ReLU(), layer).parameters()) == 2


def test_a_seed_makes_the_same_weights() -> None:
    for make in (
        lambda rng: nn.Linear(3, 4, rng=rng),
        lambda rng: nn.Conv2d(2, 3, 3, rng=rng),
        lambda rng: nn.Embedding(5, 2, rng=rng),
        lambda rng: nn.MultiHeadAttention(4, 2, rng=rng),
    ):
        first, again, other = (make(seed).parameters() for seed in (0, 0, 1))
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
        assert not np.array_equal(first[0], other[0])


def test_a_generator_goes_on_from_layer_to_layer() -> None:
    rng = np.random.default_rng(0)
    assert not np.array_equal(nn.Linear(3, 3, rng=rng).weight, nn.Linear(3, 3, rng=rng).weight)


def test_train_and_eval_reach_every_part() -> None:
    model = nn.Sequential(Block(), nn.Sequential(nn.BatchNorm2d(2)))
    assert model.eval() is model
    assert [m.training for _, m in model.named_modules()] == [False] * 7
    assert all(m.training for _, m in model.train().named_modules())


def test_while_traced_a_module_reads_what_stands_for_its_parameters() -> None:
    layer = nn.Linear(1, 1)
    weight = layer.weight
    with nn.substituted({id(weight): "traced"}):
        assert layer.weight == "traced"
        assert layer.bias is layer.parameters()[1]
        assert layer.parameters()[0] is weight
    assert layer.weight is weight


def test_an_exception_while_traced_leaves_the_module_as_it_was() -> None:
    layer = nn.Linear(1, 1)
    weight = layer.weight
    with pytest.raises(KeyError), nn.substituted({id(weight): "traced"}):
        raise KeyError
    assert layer.weight is weight


def test_a_part_may_be_missing() -> None:
    assert not hasattr(nn.Linear(1, 1), "scale")
    with pytest.raises(AttributeError, match="'Linear' object has no attribute 'scale'"):
        _ = nn.Linear(1, 1).scale


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: setattr(nn.Linear(1, 1), "weight", np.ones((1, 1))),
            "Linear.weight is a parameter; a value in its place would not be trained.\n"
            "Hint: module.weight[...] = values, or nn.Parameter(values) for a new one.",
        ),
        (
            lambda: nn.MultiHeadAttention(10, 4),
            "MultiHeadAttention got width=10 and heads=4; heads must divide width.\n"
            "Hint: nn.MultiHeadAttention(8, 4)",
        ),
        (
            lambda: nn.cross_entropy(np.ones((2, 3)), np.ones((2, 3))),
            "The labels are of dtype float64; allowed is any integer dtype.\n"
            "Hint: labels.argmax(1), if they are probabilities of the classes",
        ),
        (
            lambda: nn.cross_entropy(np.ones((2, 3)), np.array([2, -1])),
            "The label -1 is no class of logits with 3 classes; allowed are 0 to 2, and "
            "ignore_index=-100 for a label that does not count.\n"
            "Hint: ignore_index=-1, if it marks what does not count",
        ),
        (
            lambda: nn.mse_loss(np.ones((2, 1)), np.ones(2)),
            "mse_loss got shapes (2, 1) and (2,); they must be equal.\n"
            "Hint: nn.mse_loss(prediction.reshape(target.shape), target)",
        ),
    ],
)
def test_messages(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(AmpBridgeError) as error:
        call()
    assert str(error.value) == message
