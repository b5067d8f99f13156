"""O2, kept layers and outputs on NumPy: against casts written out by hand, and float32 loops."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import autograd
import autograd.numpy as anp
import ml_dtypes
import numpy as np
import pytest

import ampbridge as amp
from ampbridge import Policy
from ampbridge.adapters.backend import Decoration
from ampbridge_numpy import nn, optim
from ampbridge_numpy.backend import NumpyBackend

LOW = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
both_dtypes = pytest.mark.parametrize("dtype", LOW)
X = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)


class Recorder(nn.Module):
    """Hands its input on, and notes its dtype and that of its own parameter."""

    def __init__(self) -> None:
        self.scale = nn.Parameter(np.ones(1, np.float32))
        self.seen: list[str] = []

    def forward(self, x: Any) -> Any:
        self.seen += [x.dtype.name, self.scale.dtype.name]
        return x


class Net(nn.Module):
    def __init__(self) -> None:
        self.first, self.norm, self.second = nn.Linear(4, 6, rng=1), nn.LayerNorm(6), Recorder()
        self.head = nn.Linear(6, 3, rng=2)

    def forward(self, x: Any) -> Any:
        return self.head(nn.gelu(self.second(self.norm(self.first(x)))))


def net() -> Net:
    model = Net()
    for array in model.parameters():
        array += np.float32(0.01) * np.random.default_rng(3).standard_normal(
            array.shape, np.float32
        )
    return model


def mean_square(model: nn.Module, x: Any) -> Any:
    return anp.mean(model(x) ** 2)


def rounded(x: Any, dtype: str) -> Any:
    return np.asarray(x).astype(LOW[dtype]).astype(np.float32)


# -- what is low


@both_dtypes
def test_a_call_at_O2_is_that_of_rounded_parameters_and_inputs(dtype: str) -> None:
    model, policy = net(), Policy("O2", dtype)
    low = copy.deepcopy(model)
    for name, array in low.named_parameters():
        array[...] = array if name.startswith("norm") else rounded(array, dtype)
    with NumpyBackend().autocast(policy):
        expected = low(X.astype(LOW[dtype])).astype(np.float32)
    actual = amp.decorate(model, policy=policy)(X)
    assert actual.dtype == np.float32
    np.testing.assert_array_equal(actual, expected)
    assert not np.array_equal(actual, net()(X))


@both_dtypes
def test_what_a_layer_sees_at_O2(dtype: str) -> None:
    """LayerNorm is denied, so what it gives is float32; the next layer's own parameter is low."""
    model = amp.decorate(net(), policy=Policy("O2", dtype))
    model(X)
    assert model.second.seen == ["float32", dtype]


class First(nn.Module):
    """Layers, and a function of the inputs, which it returns beside them."""

    def __init__(self, first: nn.Module) -> None:
        self.first, self.head = first, nn.Linear(4, 3, rng=2)

    def forward(self, x: Any, target: Any = 0.0) -> Any:
        y = self.first(x)
        return y, self.head(y), x - target


class Scaled(nn.Module):
    """A parameter, and an op that is in no list."""

    def __init__(self) -> None:
        self.scale = nn.Parameter(np.ones(4, np.float32))

    def forward(self, x: Any) -> Any:
        return x * self.scale


@both_dtypes
@pytest.mark.parametrize("keep", [(), ("first",), ("first.blocks.0",)])
def test_ops_see_the_inputs_as_they_are(keep: Any, dtype: str) -> None:
    """An op that is in no list, and a function of the model's own, keep all of their bits."""

    class Around(nn.Module):
        def __init__(self) -> None:
            self.blocks = [Scaled()]
            self.unused = nn.Parameter(np.ones(1, np.float32))

        def forward(self, x: Any) -> Any:
            return self.blocks[0](x)

    model, x = First(Around()), X / 3 + 1000
    amp.decorate(model, policy=Policy("O2", dtype, keep=keep))
    y, _, difference = model(x, target=X)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(difference, x - X)
    amp.undecorate(model)
    step = amp.train_step(
        lambda model, x: (np.float32(0) * anp.sum(model(x)[1]), model(x)[0]),
        model,
        optim.SGD(model.parameters(), 0.0),
        policy=Policy("O2", "bfloat16", keep=keep),
    )
    np.testing.assert_array_equal(step(X).aux, X)


def test_a_first_normalization_sees_the_inputs_as_they_are() -> None:
    model, x = First(nn.BatchNorm1d(4)), X + 70000
    expected = model(x)[0]
    amp.decorate(model, policy="O2:float16")
    np.testing.assert_allclose(model(x)[0], expected, atol=1e-3)


def test_an_embedding_is_low_and_batch_norm_s_arrays_are_float32() -> None:
    class Images(nn.Module):
        def __init__(self) -> None:
            self.table, self.conv, self.norm = (
                nn.Embedding(4, 2),
                nn.Conv2d(1, 2, 3),
                nn.BatchNorm2d(2),
            )
            self.seen: dict[str, str] = {}

        def forward(self, x: Any, indices: Any) -> Any:
            self.seen = {
                "conv": self.conv.weight.dtype.name,
                "norm": self.norm.weight.dtype.name,
                "normed": self.norm(self.conv(x)).dtype.name,
                "running": self.norm.running_mean.dtype.name,
            }
            return {"rows": self.table(indices)}

    model = amp.decorate(Images(), policy="O2")
    rows = model(np.ones((1, 1, 4, 4), np.float32), np.arange(4))["rows"]
    assert model.seen == {
        "conv": "float16", "norm": "float32", "normed": "float16", "running": "float32"
    }  # fmt: skip
    np.testing.assert_array_equal(rows, rounded(model.table.weight, "float16"))


@both_dtypes
def test_gradients_are_those_of_the_low_parameters_in_float32(dtype: str) -> None:
    """Each parameter cast once by hand, also where it is used twice."""
    model, policy = net(), Policy("O2", dtype)

    def twice(model: nn.Module, x: Any) -> Any:
        return mean_square(model, x) + mean_square(model, 0.5 * x)

    def by_hand(*arrays: Any) -> Any:
        undecorated = net()
        pairs = zip(undecorated.named_parameters(), arrays, strict=True)
        read = {
            id(own): a if name.startswith("norm") else NumpyBackend().cast(a, dtype)
            for (name, own), a in pairs
        }
        with NumpyBackend().autocast(policy), nn.substituted(read):
            halves = [undecorated(k.astype(LOW[dtype])) for k in (X, np.float32(0.5) * X)]
            return sum(anp.mean(NumpyBackend().cast(y, "float32") ** 2) for y in halves)

    arrays = model.parameters()
    expected = autograd.grad(by_hand, tuple(range(len(arrays))))(*arrays)
    amp.decorate(model, policy=policy)
    _, grads = amp.value_and_grad(twice, model, X, policy=policy)
    for (name, _), grad, one in zip(model.named_parameters(), grads, expected, strict=True):
        if grad is None:  # the recorder's parameter
            continue
        assert grad.dtype == np.float32
        np.testing.assert_array_equal(grad, one, err_msg=name)
        assert name.startswith("norm") or np.array_equal(grad, rounded(grad, dtype))


# -- master weights


def test_without_masters_the_user_s_own_steps_round_too() -> None:
    model = nn.Linear(1, 1, bias=False)
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    policy = Policy("O2", "bfloat16", masters=None)
    model.weight[...] = 1 + 2.0**-10
    amp.decorate(model, optimizer, policy)
    assert model.weight.item() == 1.0
    optimizer.step([np.full((1, 1), 2.0**-10, np.float32)])
    assert model.weight.item() == 1.0
    amp.undecorate(model, optimizer)
    optimizer.step([np.full((1, 1), 2.0**-10, np.float32)])
    assert model.weight.item() == 1 - 2.0**-10


def test_an_optimizer_that_undecorate_was_not_given_rounds_no_more() -> None:
    model = nn.Linear(1, 1, bias=False)
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    amp.decorate(model, optimizer, Policy("O2", "bfloat16", masters=None))
    other = optim.SGD(model.parameters(), lr=1.0)
    assert NumpyBackend().decoration(model, optimizer) is not None
    assert NumpyBackend().decoration(model, other) is None
    amp.undecorate(model)
    model.weight[...] = 1.0
    optimizer.step([np.full((1, 1), 2.0**-10, np.float32)])
    assert model.weight.item() == 1 - 2.0**-10


# -- kept layers


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_kept_layer_is_float32_with_all_below_it(level: str) -> None:
    policy = Policy(level, keep=["body"])  # type: ignore[arg-type]
    recorder, first, last = Recorder(), nn.Linear(4, 4, rng=0), nn.Linear(4, 4, rng=1)

    class Holder(nn.Module):
        def __init__(self) -> None:
            self.first, self.body, self.last = first, nn.Sequential(recorder, nn.Linear(4, 4)), last
            self.seen: list[str] = []

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            y = self.body(x)
            self.seen = [x.dtype.name, y.dtype.name, self.last.weight.dtype.name]
            return self.last(y)

    model = amp.decorate(Holder(), policy=policy)
    assert model(X).dtype == np.float32
    assert recorder.seen == ["float32", "float32"]
    assert model.seen == ["float16", "float32", "float16" if level == "O2" else "float32"]


def test_a_parameter_shared_with_a_kept_layer_stays_float32() -> None:
    model = net()
    model.second = nn.Linear(6, 6, rng=0)
    model.head = nn.Linear(6, 6, rng=0)
    vars(model.head)["_parameters"]["weight"] = model.second.weight
    amp.decorate(model, policy=Policy("O2", keep=["second"]))
    low = {id(array) for array in model.around_forward.low}
    assert id(model.second.weight) not in low
    assert id(model.head.bias) in low


def test_a_kept_projection_of_an_attention_layer() -> None:
    model = nn.Sequential(nn.MultiHeadAttention(4, 2, rng=0))
    tokens = X[None]
    outputs = [
        amp.decorate(copy.deepcopy(model), policy=Policy("O2", keep=keep))(tokens)
        for keep in ((), ("layers.0.output",), ("layers.0",), ("MultiHeadAttention",))
    ]
    assert not np.array_equal(outputs[0], outputs[1])
    for whole in outputs[2:]:
        np.testing.assert_array_equal(whole, model(tokens))


def test_a_kept_layer_belongs_to_the_decoration_that_keeps_it() -> None:
    """Steps of a part and of the whole take turns; each keeps its own."""
    body = nn.Sequential(nn.Linear(4, 4, rng=0), Recorder())
    whole = nn.Sequential(body, nn.Linear(4, 1, rng=1))
    policies = Policy("O1", keep=["layers.1"]), Policy("O1", keep=["layers.0.layers.0"])
    part_step, whole_step = (
        amp.train_step(
            lambda model, x: anp.mean(model(x)),
            model,
            optim.SGD(model.parameters(), lr=0.0),
            policy=policy,
        )
        for model, policy in zip((body, whole), policies, strict=True)
    )
    for step in (part_step, whole_step, part_step):
        step(X)
    dtypes = body.layers[1].seen[::2]
    assert dtypes == ["float32", "float32", "float32"]
    amp.undecorate(whole)
    with NumpyBackend().autocast(Policy("O1")):
        whole(X)
    assert body.layers[1].seen[-2] == "float32"
    amp.undecorate(body)
    with NumpyBackend().autocast(Policy("O1")):
        whole(X)
    assert body.layers[1].seen[-2] == "float16"


def test_a_model_that_is_kept_itself_is_float32() -> None:
    model = amp.decorate(net(), policy=Policy("O2", keep=["Net"]))
    np.testing.assert_array_equal(model(X), net()(X))


# -- where it holds


def test_outputs_in_containers() -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            y = self.layer(x)
            return {"y": y, "more": [y, (y, np.arange(2))], "wide": np.ones(1), "none": None}

    model = amp.decorate(Several(), policy=Policy("O1", output_dtype="float32"))
    result = model(X)
    assert result["y"].dtype == result["more"][0].dtype == result["more"][1][0].dtype == np.float32
    assert result["more"][1][1].dtype == np.int64
    assert (result["wide"].dtype, result["none"]) == (np.float64, None)


def test_low_outputs_inside_of_an_object_are_said() -> None:
    class Prediction:
        def __init__(self, mean: Any) -> None:
            self.mean = mean

    class Predicting(nn.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(4, 2, rng=0)

        def forward(self, x: Any) -> Prediction:
            return Prediction(self.layer(x))

    model = amp.decorate(Predicting())
    with pytest.warns(
        amp.AmpBridgeWarning, match="inside of a .*Prediction, which is no container"
    ):
        assert model(X).mean.dtype == np.float16


def test_a_gradient_of_one_s_own_through_a_decorated_model() -> None:
    model = amp.decorate(net(), policy="O2:bfloat16")
    gradient = autograd.grad(lambda x: anp.sum(model(x)))(X)
    assert gradient.dtype == np.float32
    assert np.array_equal(gradient, rounded(gradient, "bfloat16"))
    assert np.abs(gradient).max() > 0


def test_a_copy_of_a_decorated_model_is_decorated_and_its_own() -> None:
    model = amp.decorate(net(), policy=Policy("O2", keep=["head"]))
    expected = model(X)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        for array in model.parameters():
            array += 1
        np.testing.assert_array_equal(copied(X), expected)
        for array in model.parameters():
            array -= 1
        amp.undecorate(copied)
        np.testing.assert_array_equal(copied(X), net()(X))
        assert model.around_forward is not None


# -- taking it back


def test_undecorate_leaves_no_trace() -> None:
    model = net()
    optimizer = optim.AdamW(model.parameters())

    def details() -> Any:
        return [dict(vars(m)) for _, m in model.named_modules()], dict(vars(optimizer))

    before = details()
    policy = Policy("O2", keep=["head"], masters=None)
    amp.decorate(model, optimizer, policy)
    assert NumpyBackend().decoration(model, optimizer) == Decoration(policy, [model.head])
    amp.undecorate(model, optimizer)
    assert details() == before
    assert NumpyBackend().decoration(model, optimizer) is None
    amp.undecorate(model, optimizer)


# -- what is refused


class Own:
    """Somebody's optimizer."""

    def __repr__(self) -> str:
        return "Own()"


class Holding(Own):
    """Somebody's, that holds the parameters."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = model.parameters()

    def step(self, grads: Any) -> None: ...

    def __repr__(self) -> str:
        return "somebody's"


PARTLY = nn.Sequential(nn.Linear(2, 2))
amp.decorate(PARTLY.layers[0], policy="O2")


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda model: amp.decorate(model, Holding(model), Policy("O2", masters=None)),
            "Policy('O2', 'float16', masters=None): what it keeps in 16 bits is rounded after each "
            "step of an optimizer of ampbridge_numpy.optim, and somebody's is none.\n"
            "Hint: class Mine(optim.Optimizer): ...",
        ),
        (
            lambda model: amp.decorate(model, Own(), Policy("O2", masters=None)),
            f"optimizer is an optimizer of numpy, not {Own.__module__}.Own.\n"
            "Hint: optimizer = optim.SGD(model.parameters(), lr=0.1)",
        ),
        (
            lambda model: amp.decorate(model, save_dtype="float16"),
            "save_dtype='float16': modules of ampbridge_numpy have no state_dict; their arrays are "
            "float32.\nHint: np.savez(file, **{name: array.astype('float16') for name, array in "
            "model.named_parameters()})",
        ),
        (
            lambda model: amp.decorate(model, policy=Policy("O2", lists="native")),
            "lists='native': NumPy has no autocast of its own.\n"
            "Hint: Policy('O2', 'float16', lists='torch')",
        ),
        (
            lambda model: amp.decorate(PARTLY),
            "'layers.0' (Linear) is decorated already, by itself, for Policy('O2', 'float16').\n"
            "Hint: amp.undecorate(part), then amp.decorate(model).",
        ),
        (
            lambda model: NumpyBackend().layers(X),
            "A model is an ampbridge_numpy.nn.Module, not numpy.ndarray.\n"
            "Hint: class Model(nn.Module): ...",
        ),
    ],
)
def test_messages(call: Callable[[nn.Module], Any], message: str) -> None:
    model = net()
    with pytest.raises(amp.AmpBridgeError) as error:
        call(model)
    assert str(error.value) == message
    assert [m.around_forward for _, m in model.named_modules()] == [None] * 5


def test_simulated_and_native_are_one_computation() -> None:
    backend = NumpyBackend()
    asked = {e: Policy("O2", execution=e) for e in ("auto", "native", "simulated")}  # type: ignore[arg-type]
    assert {e: backend.execution(p) for e, p in asked.items()} == {
        "auto": "native", "native": "native", "simulated": "simulated"
    }  # fmt: skip
    results = [amp.decorate(net(), policy=policy)(X) for policy in asked.values()]
    for result in results:
        np.testing.assert_array_equal(result, results[0])


def test_float64_and_nothing_at_all_fit_float16() -> None:
    """O2 leaves float64 as it is; an array without numbers has no largest one."""
    model = nn.Linear(2, 2, rng=0)
    model.weight = nn.Parameter(np.full((2, 2), 1e6))
    model.bias = nn.Parameter(np.zeros((0,), np.float32))
    assert NumpyBackend().largest_magnitudes(model, [], "float16") == []
