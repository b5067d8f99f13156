"""Products written with ``dot``, ``tensordot`` and ``inner``: by the arguments' dimensions."""

import itertools

import autograd.numpy as anp
import numpy as np
import pytest

import ampbridge as amp
from ampbridge import Policy, lens
from ampbridge_numpy import nn, optim

MATRIX = np.ones((3, 3), np.float32)
VECTOR = np.ones(3, np.float32)
SCALAR = np.float32(2)

PRODUCTS = {
    "dot": lambda: anp.dot(MATRIX, MATRIX),
    "dot of a matrix and a vector": lambda: anp.dot(MATRIX, VECTOR),
    "dot of a stack": lambda: anp.dot(np.ones((2, 3, 3), np.float32), MATRIX),
    "tensordot": lambda: anp.tensordot(MATRIX, MATRIX, 1),
    "tensordot over named axes": lambda: anp.tensordot(MATRIX, MATRIX, axes=([1], [0])),
    "tensordot of a matrix and a vector": lambda: anp.tensordot(MATRIX, VECTOR, axes=1),
    "inner": lambda: anp.inner(MATRIX, MATRIX),
    "matmul": lambda: anp.matmul(MATRIX, MATRIX),
    "einsum": lambda: anp.einsum("ij,jk", MATRIX, MATRIX),
}

OTHERS = {
    "dot of vectors": lambda: anp.dot(VECTOR, VECTOR),
    "dot with a scalar": lambda: anp.dot(SCALAR, MATRIX),
    "inner of vectors": lambda: anp.inner(VECTOR, VECTOR),
    "tensordot of vectors": lambda: anp.tensordot(VECTOR, VECTOR, 1),
    "tensordot that sums nothing": lambda: anp.tensordot(MATRIX, MATRIX, axes=0),
    "outer": lambda: anp.outer(VECTOR, VECTOR),
}


def dtype_of(call, policy):
    with amp.autocast(policy, "numpy"):
        return call().dtype.name


@pytest.mark.parametrize("product", PRODUCTS)
def test_matrices_are_multiplied_by_matmul_s_rule(product):
    assert dtype_of(PRODUCTS[product], "O1") == "float16"
    assert dtype_of(PRODUCTS[product], "O1:bfloat16") == "bfloat16"
    assert dtype_of(PRODUCTS[product], Policy(deny=["matmul", "einsum"])) == "float32"


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_no_product_of_matrices_has_its_own_rule(other):
    assert dtype_of(OTHERS[other], "O1") == "float32"
    assert (
        dtype_of(OTHERS[other], Policy(allow=["dot", "inner", "tensordot", "outer"])) == "float16"
    )


@pytest.mark.parametrize("name", ["dot", "tensordot", "inner"])
def test_what_the_user_says_of_the_name_comes_first(name):
    assert dtype_of(PRODUCTS[name], Policy(deny=[name])) == "float32"
    assert dtype_of(PRODUCTS[name], Policy(deny=["matmul"], allow=[name])) == "float16"


def test_explain_says_so():
    row = amp.explain("O1", "numpy").op("dot")
    assert (row.category, row.why) == ("promote", "of vectors; of matrices it is matmul")


# -- the multi-layer perceptron of autograd's own examples, in a module


class Net(nn.Module):
    def __init__(self, sizes):
        random = np.random.default_rng(0)
        pairs = itertools.pairwise(sizes)
        self.layers = [Layer(0.1 * random.standard_normal((m, n)), n) for m, n in pairs]

    def forward(self, inputs):
        for layer in self.layers:
            outputs = anp.dot(inputs, layer.W) + layer.b
            inputs = anp.tanh(outputs)
        return outputs - logsumexp(outputs)


class Layer(nn.Module):
    def __init__(self, weights, width):
        self.W, self.b = nn.Parameter(weights.astype("f")), nn.Parameter(np.zeros(width, "f"))


def logsumexp(x):
    top = anp.max(x, axis=1, keepdims=True)
    return top + anp.log(anp.sum(anp.exp(x - top), axis=1, keepdims=True))


def l2_norm(net):
    flattened = anp.concatenate([anp.ravel(p) for each in net.layers for p in (each.W, each.b)])
    return anp.dot(flattened, flattened)


def loss_fn(net, inputs, targets):
    return 1e-3 * l2_norm(net) - anp.sum(net(inputs) * targets) / len(targets)


INPUTS = np.random.default_rng(1).standard_normal((32, 20)).astype("f")
TARGETS = np.eye(5, dtype="f")[np.argmax(INPUTS[:, :5], axis=1)]


def test_a_net_written_with_dot_is_low_at_o1():
    census = lens.census(loss_fn, Net([20, 16, 5]), INPUTS, TARGETS, policy="O1")
    products = [
        (row.op, row.dtype, row.calls) for row in census.rows if row.op in ("matmul", "dot")
    ]
    assert products == [("dot", "float32", 1), ("matmul", "float16", 2)]


def test_it_trains():
    net = Net([20, 16, 5])
    step = amp.train_step(loss_fn, net, optim.SGD(net.parameters(), lr=0.5), policy="O1")
    losses = [float(step(INPUTS, TARGETS).loss) for _ in range(60)]
    assert losses[-1] < losses[0] / 3


PLAIN = {
    "dot": lambda x, w: np.dot(x, w),
    "tensordot": lambda x, w: np.tensordot(x, w, 1),
    "einsum": lambda x, w: np.einsum("ij,jk", x, w),
    "inner": lambda x, w: np.inner(x, w.T),
    "outer": lambda x, w: np.outer(x, w),
}


@pytest.mark.parametrize("policy", ["O0", "O1"])
@pytest.mark.parametrize("function", PLAIN)
def test_plain_numpy_s_functions_of_a_parameter_say_what_to_import(function, policy):
    def loss_fn(model, x):
        return anp.mean(PLAIN[function](x, model.weight))

    with pytest.raises(amp.ArgumentTypeError, match="A function of plain NumPy") as caught:
        amp.value_and_grad(loss_fn, nn.Linear(3, 3), MATRIX, policy=policy)
    assert str(caught.value).splitlines()[-1] == "Hint: import autograd.numpy as np"


@pytest.mark.parametrize("product", [np.matmul, lambda x, w: x @ w], ids=["np.matmul", "@"])
def test_plain_numpy_s_ufuncs_of_a_parameter_follow_the_rules(product):
    def loss_fn(model, x):
        y = product(x, model.weight)
        return anp.mean(y), y.dtype.name

    _, grads = amp.value_and_grad(lambda *given: loss_fn(*given)[0], nn.Linear(3, 3), MATRIX)
    assert grads[0].shape == (3, 3)
    model = nn.Linear(3, 3)
    step = amp.train_step(loss_fn, model, optim.SGD(model.parameters(), lr=0.1), policy="O1")
    assert step(MATRIX).aux == "float16"
