"""Decorated models on PaddlePaddle: O2 and kept layers beyond what the conformance suite asks."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from own_loops import step_by
from paddle import nn
from paddle_reference import LOW, is_representable, normal, rounded

import ampbridge as amp
from ampbridge_paddle import recompute
from ampbridge_paddle.autocast import simulation
from ampbridge_paddle.model.decorating import low_tensors
from ampbridge_paddle.model.low_weights import low_dtype_of, make_full
from ampbridge_paddle.step.sparse_gradients import dense_values

X, LABELS = normal(16, 12), np.arange(16) % 4

# With its products denied a model shows by its results what it read.
PRODUCTS = ("linear", "matmul")

every_dtype = pytest.mark.parametrize("dtype", LOW)
both_ways = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])


def mlp() -> nn.Layer:
    return nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))


def cross_entropy(model: nn.Layer, x: Any, labels: Any) -> Any:
    return F.cross_entropy(model(x), labels)


def tensor(values: Any) -> paddle.Tensor:
    return paddle.to_tensor(values)


def sgd(model: nn.Layer, rate: float = 0.1) -> paddle.optimizer.Optimizer:
    return paddle.optimizer.SGD(rate, parameters=model.parameters())


def values(model: nn.Layer) -> list[np.ndarray]:
    return [p.numpy() for p in model.parameters()]


class LlamaRMSNorm(nn.Layer):
    """As models of others have it: a name and a vector."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = self.create_parameter([size])

    def forward(self, x: Any) -> Any:
        return self.weight * x


class TestWhatIsLow:
    @pytest.mark.parametrize("dtype", LOW)
    @pytest.mark.parametrize(
        "normalization",
        [
            lambda: nn.BatchNorm(4),
            lambda: nn.BatchNorm2D(4),
            lambda: nn.SyncBatchNorm(4),
            lambda: nn.GroupNorm(2, 4),
            lambda: nn.InstanceNorm2D(4),
            lambda: nn.LayerNorm([4, 5, 5]),
            lambda: LlamaRMSNorm(4),
        ],
    )
    def test_normalizations_are_not(self, normalization: Callable[[], Any], dtype: str) -> None:
        model = nn.Sequential(nn.Conv2D(3, 4, 1), normalization())
        amp.decorate(model, policy=amp.Policy("O2", dtype))
        assert [low_dtype_of(p) for p in model[0].parameters()] == [dtype, dtype]
        assert {low_dtype_of(p) for p in model[1].parameters()} == {None}

    def test_a_parameter_shared_with_a_kept_layer_is_not(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].weight = model[0].weight
        amp.decorate(model, policy=amp.Policy("O2", keep=["1"]))
        assert low_dtype_of(model[0].weight) is None
        assert low_dtype_of(model[0].bias) == "float16"

    def test_float64_and_integers_are_not(self) -> None:
        model = nn.Linear(4, 4)
        model.to(dtype="float64")
        model.register_buffer("steps", paddle.zeros([1], "int64"))
        amp.decorate(model, policy="O2")
        assert {low_dtype_of(p) for p in [*model.parameters(), *model.buffers()]} == {None}
        x = paddle.ones([1, 4], "float64")
        assert model(x).dtype == paddle.float64

    @pytest.mark.parametrize("kind", ["NormalizedLinear", "Scale"])
    def test_a_matrix_or_another_name_makes_no_normalization(self, kind: str) -> None:
        held = LlamaRMSNorm(4) if kind == "Scale" else nn.Linear(4, 4)
        held.__class__ = type(kind, (type(held),), {})
        amp.decorate(nn.Sequential(held), policy="O2")
        assert low_dtype_of(held.weight) == "float16"

    def test_buffers_are_not(self) -> None:
        class Scaled(nn.Layer):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("factor", tensor(np.float32([1.1])))

            def forward(self, x: Any) -> Any:
                return x * self.factor

        model = Scaled()
        amp.decorate(model, policy=amp.Policy("O2", deny=["multiply"]))
        assert model(paddle.ones([1])).item() == float(np.float32(1.1))
        model.factor = tensor(np.float32([1.3]))
        assert model(paddle.ones([1])).item() == float(np.float32(1.3))

    @both_ways
    def test_buffers_in_a_step(self, compiled: bool) -> None:
        class Shifted(nn.Layer):
            def __init__(self) -> None:
                super().__init__()
                self.weight = self.create_parameter([1])
                self.register_buffer("shift", tensor(np.float32([1.1])))

            def forward(self, x: Any) -> Any:
                return self.weight * 0.0 + x * self.shift

        model = Shifted()
        policy = amp.Policy("O2", deny=["multiply", "add"])
        step = amp.train_step(
            lambda model, x: model(x).sum(), model, sgd(model), policy=policy, compile=compiled
        )
        for _ in range(2):
            assert step(np.ones(1, np.float32)).loss == float(np.float32(1.1))

    def test_low_parameters_are_low_wherever_a_region_reads_them(self) -> None:
        """As stored 16-bit tensors would be; outside of regions they are their float32 masters."""
        model = nn.Linear(4, 4, bias_attr=False)
        model.weight.set_value(normal(4, 4))
        exact, low = model.weight.numpy(), rounded(model.weight.numpy(), "bfloat16")
        amp.decorate(model, policy="O2:bfloat16")
        denied = amp.Policy("O1", "float16", deny=["linear", "matmul"])
        reads: dict[str, Callable[[Any], Any]] = {
            "F.linear": lambda w: F.linear(paddle.eye(4), w),
            "matmul": lambda w: paddle.eye(4).matmul(w),
            "reshape": lambda w: w.reshape([-1]).reshape([4, 4]),
            "__getitem__": lambda w: w[:],
            "clone": lambda w: w.clone(),
            "astype": lambda w: w.astype("float32"),
            "in a list": lambda w: paddle.concat([w[:2], w[2:]]),
        }
        for name, read in reads.items():
            assert np.array_equal(read(model.weight).numpy(), exact), name
            with amp.autocast(denied, "paddle"):
                assert np.array_equal(read(model.weight).numpy(), low), name
        assert not is_representable(model.weight, "bfloat16")

    @every_dtype
    def test_an_embedding_gives_rounded_rows(self, dtype: str) -> None:
        model = nn.Embedding(20, 16)
        amp.decorate(model, policy=amp.Policy("O2", dtype))
        rows = model(tensor([[3, 3], [7, 0]])).numpy()
        assert np.array_equal(rows, rounded(model.weight.numpy(), dtype)[[[3, 3], [7, 0]]])
        with amp.autocast(amp.Policy("O1", dtype, deny=["embedding"]), "paddle"):
            denied = F.embedding(tensor([3]), model.weight)
            assert simulation.low_dtype(denied) is None
        assert np.array_equal(denied.numpy()[0], rows[0, 0])

    @pytest.mark.parametrize("level", ["O1", "O2"])
    def test_a_kept_layer_gets_float32_and_gives_it(self, level: Any) -> None:
        seen: list[str | None] = []

        class Echo(nn.Layer):
            def forward(self, x: Any, *, again: Any) -> Any:
                seen.extend(simulation.low_dtype(t) for t in (x, again[0]))
                return x, again

        class Around(nn.Layer):
            def __init__(self) -> None:
                super().__init__()
                self.linear, self.echo = nn.Linear(4, 4), Echo()

            def forward(self, x: Any) -> Any:
                low = self.linear(x)
                assert simulation.low_dtype(low) == "float16"
                out = self.echo(low, again=[low])
                seen.extend(simulation.low_dtype(t) for t in (out[0], out[1][0]))
                return low

        amp.decorate(model := Around(), policy=amp.Policy(level, "float16", keep=["echo"]))
        model(tensor(normal(2, 4)))
        assert seen == [None] * 4


class TestGradients:
    @staticmethod
    def backward(model: nn.Layer, x: Any = X) -> list[np.ndarray]:
        model.clear_gradients()
        (cross_entropy(model, tensor(x), tensor(LABELS)) * 2.0**10).backward()
        return [p.grad.numpy() for p in model.parameters()]

    @every_dtype
    def test_of_the_user_s_own_backward_are_rounded(self, dtype: str) -> None:
        model = amp.decorate(mlp(), policy=amp.Policy("O2", dtype))
        grads = self.backward(model)
        norm = [2, 3]
        assert [is_representable(g, dtype) for g in grads] == [i not in norm for i in range(6)]

    @every_dtype
    def test_of_a_parameter_that_is_used_twice_are_rounded_as_a_whole(self, dtype: str) -> None:
        class Tied(nn.Layer):
            def __init__(self) -> None:
                super().__init__()
                self.embedding = nn.Embedding(20, 16)

            def forward(self, tokens: Any) -> Any:
                return (
                    self.embedding(tokens).mean(axis=1).matmul(self.embedding.weight, False, True)
                )

        tokens = tensor(np.random.default_rng(0).integers(0, 20, (16, 7)))
        model = amp.decorate(Tied(), policy=amp.Policy("O2", dtype))
        (cross_entropy(model, tokens, tensor(LABELS)) * 2.0**10).backward()
        weight = model.embedding.weight
        assert is_representable(weight.grad, dtype)
        scaler = amp.GradScaler(2.0**10)
        policy = amp.Policy("O2", dtype)
        _, grads = amp.value_and_grad(
            cross_entropy, model, tokens, LABELS, policy=policy, scaler=scaler
        )
        assert np.array_equal(grads[0].numpy(), weight.grad.numpy())

    def test_micro_batches_add_up_in_float32(self) -> None:
        """1 + 2**-12 is neither of the low precisions'."""
        model = nn.Linear(1, 1, bias_attr=False)
        amp.decorate(model, policy="O2:bfloat16")
        for factor in (1.0, 2.0**-12):
            (model(paddle.ones([1, 1])) * factor).sum().backward()
        assert model.weight.grad.item() == 1 + 2.0**-12

    def test_hooks_of_the_user_see_them_and_are_found(self) -> None:
        model = amp.decorate(mlp(), policy="O2:bfloat16")
        seen: list[bool] = []
        model[0].weight.register_hook(lambda grad: seen.append(is_representable(grad, "bfloat16")))
        amp.value_and_grad(cross_entropy, model, X, LABELS, policy="O2:bfloat16")
        assert seen == [True]

    @pytest.mark.parametrize("sparse", [False, True])
    def test_one_that_comes_from_outside_of_a_region_is_rounded(self, sparse: bool) -> None:
        """1 + 2**-12 is nearest to 1 in bfloat16."""
        table = amp.decorate(nn.Embedding(2, 1), policy="O2:bfloat16")
        row = nn.functional.embedding(paddle.to_tensor([0, 1]), table.weight, sparse=sparse)
        (row * (1 + 2.0**-12)).sum().backward()
        assert dense_values(table.weight.grad).tolist() == [[1.0], [1.0]]

    def test_sparse_gradients(self) -> None:
        def weights(sparse: bool) -> np.ndarray:
            paddle.seed(7)
            model = nn.Sequential(
                nn.Embedding(20, 8, sparse=sparse), nn.Flatten(), nn.Linear(24, 4)
            )
            tokens = np.random.default_rng(1).integers(0, 20, (16, 3))
            step = amp.train_step(cross_entropy, model, sgd(model, 0.5), policy="O2")
            for _ in range(4):
                assert step(tokens, LABELS).applied
            return model[0].weight.numpy()

        before, after = weights(sparse=False), weights(sparse=True)
        assert np.allclose(before, after, atol=1e-3)
        assert not np.array_equal(before, np.zeros_like(before))

    @pytest.mark.parametrize("reentrant", [True, False])
    def test_recompute(self, reentrant: bool) -> None:
        def loss(model: nn.Layer, recomputed: bool) -> Any:
            x = tensor(X)
            x.stop_gradient = False
            with amp.autocast("O2:bfloat16", "paddle"):
                body = model[:3]
                hidden = recompute(body, x, use_reentrant=reentrant) if recomputed else body(x)
                return F.cross_entropy(model[3](hidden), tensor(LABELS))

        model = amp.decorate(mlp(), policy="O2:bfloat16")
        results = []
        for recomputed in (False, True):
            model.clear_gradients()
            loss(model, recomputed).backward()
            results.append([p.grad.numpy() for p in model.parameters()])
        assert all(np.array_equal(a, b) for a, b in zip(*results, strict=True))
        assert is_representable(results[1][0], "bfloat16")

    @every_dtype
    @pytest.mark.parametrize("denied", [(), PRODUCTS])
    def test_compiled_are_the_same(self, dtype: str, denied: tuple[str, ...]) -> None:
        """What a step of plain gradient descent subtracts; the masters are float32."""
        moved = []
        for compiled in (False, True):
            paddle.seed(3)
            model = mlp()
            before = values(model)
            policy = amp.Policy("O2", dtype, keep=["3"], deny=denied)
            amp.train_step(cross_entropy, model, sgd(model), policy=policy, compile=compiled)(
                X, LABELS
            )
            moved.append([b - a for b, a in zip(before, values(model), strict=True)])
        for eager, compiled_ in zip(*moved, strict=True):
            assert np.array_equal(eager, compiled_)


def test_a_convolution_is_rounded_before_its_bias_and_after() -> None:
    """As on a GPU, where adding the bias is a kernel of its own."""
    x, w, b = normal(2, 3, 6, 6), normal(4, 3, 3, 3, seed=1), rounded(normal(4), "bfloat16")
    bias = b.reshape(-1, 1, 1)
    product = F.conv2d(*map(tensor, (rounded(x, "bfloat16"), rounded(w, "bfloat16")))).numpy()
    with amp.autocast("O1:bfloat16", "paddle"):
        got = F.conv2d(tensor(x), tensor(w), tensor(b)).numpy()
    assert np.array_equal(got, rounded(rounded(product, "bfloat16") + bias, "bfloat16"))
    assert not np.array_equal(got, rounded(product + bias, "bfloat16"))


class Answering(nn.Layer):
    """Returns what it is told to make of its result."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        super().__init__()
        self.linear, self.answer = nn.Linear(4, 4), answer

    def forward(self, x: Any, scale: Any = None) -> Any:
        return self.answer(self.linear(x))


class Pair(NamedTuple):
    one: Any
    two: Any


class TestOutputs:
    @pytest.mark.parametrize("output_dtype", ["float32", "float16", "bfloat16"])
    @pytest.mark.parametrize("level", ["O1", "O2"])
    def test_in_containers(self, level: Any, output_dtype: str) -> None:
        model = Answering(lambda y: OrderedDict(a=[y, (y + 1, 3)], b=Pair(y, None), c="text"))
        policy = amp.Policy(level, "float16", output_dtype=output_dtype)
        out = amp.decorate(model, policy=policy)(tensor(normal(2, 4)))
        assert isinstance(out, OrderedDict)
        assert isinstance(out["b"], Pair)
        assert (out["a"][1][1], out["b"].two, out["c"]) == (3, None, "text")
        found = [out["a"][0], out["a"][1][0], out["b"].one]
        expected = None if output_dtype == "float32" else output_dtype
        assert [simulation.low_dtype(y) for y in found] == [expected] * 3
        assert all(y.dtype == paddle.float32 for y in found)  # the storage, in simulation
        assert all(is_representable(y, "float16" if expected is None else expected) for y in found)

    def test_float32_ones_are_computed_with_as_such(self) -> None:
        model = amp.decorate(Answering(lambda y: y), policy="O2:bfloat16")
        with amp.autocast("O2:bfloat16", "paddle"):
            y = model(tensor(normal(2, 4)))
            assert not is_representable(paddle.sin(y), "bfloat16")

    def test_float64_and_integers_stay(self) -> None:
        model = Answering(lambda y: (y.astype("float64"), y.argmax(axis=1)))
        double, classes = amp.decorate(model, policy="O2")(tensor(normal(2, 4)))
        assert (double.dtype, classes.dtype) == (paddle.float64, paddle.int64)

    def test_inputs_are_handed_on_as_they_are(self) -> None:
        class Echo(nn.Layer):
            def forward(self, *, batch: Any) -> Any:
                return batch["x"] * 1.0, batch["n"]

        x, n = amp.decorate(Echo(), policy="O2:bfloat16")(
            batch={"x": tensor(normal(3)), "n": tensor([2**20 + 1])}
        )
        assert np.array_equal(x.numpy(), normal(3))
        assert n.item() == 2**20 + 1


class TestKept:
    @pytest.mark.parametrize("level", ["O1", "O2"])
    @pytest.mark.parametrize("entry", ["heads", "LayerList", "heads.0", "heads.*"])
    def test_containers_that_are_never_called_stand_for_their_layers(
        self, level: str, entry: str
    ) -> None:
        class Heads(nn.Layer):
            def __init__(self) -> None:
                super().__init__()
                self.heads = nn.LayerList([nn.Linear(3, 3)])

            def forward(self, x: Any) -> Any:
                return self.heads[0](x)

        model, x = Heads(), tensor(normal(2, 3))
        expected = model(x).numpy()
        amp.decorate(model, policy=amp.Policy(level, "bfloat16", keep=[entry]))
        assert np.array_equal(model(x).numpy(), expected)
        amp.undecorate(model)
        amp.decorate(model, policy=amp.Policy(level, "bfloat16"))
        assert not np.array_equal(model(x).numpy(), expected)


class TestCopies:
    """A copy is decorated as the first is, with parameters of its own."""

    @pytest.mark.parametrize(
        "copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))]
    )
    @pytest.mark.parametrize("keep", [[], ["3"]])
    def test_a_copy_computes_the_same(self, copied: Callable[[Any], Any], keep: list[str]) -> None:
        policy = amp.Policy("O2", "bfloat16", keep=keep, deny=PRODUCTS)
        model = amp.decorate(mlp(), policy=policy)
        other = copied(model)
        x = tensor(X)
        assert np.array_equal(other(x).numpy(), model(x).numpy())
        plain = mlp()
        plain.set_state_dict(model.state_dict())
        plain[0].weight.set_value(rounded(plain[0].weight.numpy(), "bfloat16"))
        plain[0].bias.set_value(rounded(plain[0].bias.numpy(), "bfloat16"))
        assert np.array_equal(other[0](x).numpy(), plain[0](x).numpy()) is False
        with amp.autocast(policy.replace(keep=()), "paddle"):
            assert np.array_equal(other[0](x).numpy(), plain[0](x).numpy())
        plain.set_state_dict(model.state_dict())
        amp.undecorate(other)
        assert np.array_equal(other(x).numpy(), plain(x).numpy())
        assert not np.array_equal(model(x).numpy(), plain(x).numpy())
        assert type(other) is nn.Sequential
        assert type(other[3]) is nn.Linear

    def test_a_deep_copy_s_gradients_are_rounded_too(self) -> None:
        model = amp.decorate(mlp(), policy=amp.Policy("O2", "bfloat16", deny=PRODUCTS))
        grads = TestGradients.backward(copy.deepcopy(model))
        assert is_representable(grads[0], "bfloat16")
        assert not is_representable(grads[2], "bfloat16")

    def test_a_slice_of_a_decorated_model_is_a_plain_one(self) -> None:
        model = amp.decorate(mlp(), policy="O2:bfloat16")
        assert not is_representable(model[:2](tensor(X)), "bfloat16")


class Interrupting(nn.Layer):
    def forward(self, x: Any) -> Any:
        assert simulation.active_region() is not None
        raise KeyboardInterrupt


@pytest.mark.parametrize("keep", [[], ["Interrupting"]])
def test_an_interrupted_call_leaves_no_region(keep: list[str]) -> None:
    model = nn.Sequential(Interrupting())
    amp.decorate(model, policy=amp.Policy("O2", keep=keep))
    with pytest.raises(KeyboardInterrupt):
        model(paddle.ones([1]))
    assert simulation.active_region() is None


class TestSaving:
    @pytest.mark.parametrize("save_dtype", ["float32", *LOW])
    def test_state_dict_is_in_save_dtype_and_loads_back(self, save_dtype: str) -> None:
        model = mlp()
        tiny = np.full(31, 6e-25, np.float32)  # Paddle's cast would make it 1e-5
        model[0].bias.set_value(np.append(tiny, np.float32(0.5)))
        amp.decorate(model, policy="O2", save_dtype=save_dtype)
        held = {k: v.numpy() for k, v in model.state_dict(use_hook=False).items()}
        saved = model.state_dict()
        assert {str(v.dtype) for v in saved.values()} == {f"paddle.{save_dtype}"}
        other = amp.decorate(mlp(), policy="O2", save_dtype=save_dtype)
        assert other.set_state_dict(saved) == ([], [])
        for name, loaded in other.state_dict(use_hook=False).items():
            expected = held[name] if save_dtype == "float32" else rounded(held[name], save_dtype)
            assert np.array_equal(loaded.numpy(), expected), name
        amp.undecorate(model)
        assert {str(v.dtype) for v in model.state_dict().values()} == {"paddle.float32"}

    def test_without_it_masters_are_saved(self) -> None:
        model = mlp()
        exact = values(model)
        amp.decorate(model, policy="O2")
        saved = [v.numpy() for v in model.state_dict().values()]
        assert all(np.array_equal(a, b) for a, b in zip(saved, exact, strict=True))

    def test_jit_save_gives_the_float32_model(self, tmp_path: Any) -> None:
        model = mlp()
        plain = model(tensor(X)).numpy()
        amp.decorate(model, policy=amp.Policy("O2", keep=["3"]))
        spec = [paddle.static.InputSpec([None, 12], "float32")]
        paddle.jit.save(model, str(tmp_path / "model"), input_spec=spec)
        assert np.allclose(paddle.jit.load(str(tmp_path / "model"))(tensor(X)).numpy(), plain, 1e-5)


class TestWithoutMasters:
    POLICY = amp.Policy("O2", "bfloat16", masters=None)

    def test_weights_are_low_from_the_first(self) -> None:
        model = nn.Linear(8, 8)
        exact = model.weight.numpy()
        amp.decorate(model, sgd(model, 0.1), self.POLICY)
        assert np.array_equal(model.weight.numpy(), rounded(exact, "bfloat16"))

    @pytest.mark.parametrize("loop", ["step", "minimize", "scaler.step", "scaler.minimize"])
    def test_own_loops_step_the_low_parameters(self, loop: str) -> None:
        """Under 1, half of bfloat16's ulp is 2**-9: an update of 2**-10 is lost."""
        model = nn.Linear(1, 1, bias_attr=False)
        model.weight.set_value(np.ones((1, 1), np.float32))
        _, optimizer = amp.decorate(model, sgd(model, 2.0**-10), self.POLICY)
        scaler = amp.GradScaler(2.0**8)
        for _ in range(4):
            step_by(loop, model, optimizer, scaler)
            assert model.weight.item() == 1.0
        amp.undecorate(model, optimizer)
        assert type(optimizer) is paddle.optimizer.SGD
        F.linear(paddle.ones([1, 1]), model.weight).sum().backward()
        optimizer.step()
        assert model.weight.item() == 1.0 - 2.0**-10

    def test_two_models_of_one_optimizer(self) -> None:
        first, second = nn.Linear(1, 1), nn.Linear(1, 1)
        optimizer = paddle.optimizer.SGD(
            0.1, parameters=[*first.parameters(), *second.parameters()]
        )
        for model in (first, second):
            amp.decorate(model, optimizer, self.POLICY)
        amp.undecorate(first, optimizer)
        (first.weight + second.weight).sum().backward()
        first.weight.set_value(np.full((1, 1), 0.3, np.float32))
        optimizer.step()
        assert is_representable(second.weight, "bfloat16")
        assert not is_representable(first.weight, "bfloat16")

    def test_another_optimizer_is_decorated_anew(self) -> None:
        model = nn.Linear(1, 1)
        amp.decorate(model, sgd(model), self.POLICY)
        backend = amp.backend("paddle")
        assert backend.decoration(model, None) is not None
        assert backend.decoration(model, sgd(model)) is None

    def test_without_an_optimizer_it_is_refused(self) -> None:
        model = nn.Linear(1, 1)
        with pytest.raises(
            amp.UnsupportedError, match=r"no optimizer was passed\.\nHint: model, opt"
        ):
            amp.decorate(model, policy=self.POLICY)
        assert type(model) is nn.Linear
        assert low_dtype_of(model.weight) is None


class TestComposition:
    def test_a_part_that_is_decorated_already_is_refused(self) -> None:
        part = amp.decorate(mlp(), policy="O2:bfloat16")
        with pytest.raises(amp.UnsupportedError, match=r"Hint: amp\.undecorate"):
            amp.decorate(nn.Sequential(part), policy="O2")
        assert is_representable(TestGradients.backward(part)[0], "bfloat16")

    def test_a_model_that_is_kept_as_a_whole_computes_in_float32(self) -> None:
        model = mlp()
        plain = model(tensor(X)).numpy()
        amp.decorate(model, policy=amp.Policy("O2", keep=["Sequential"], output_dtype="bfloat16"))
        assert np.array_equal(
            model(tensor(rounded(X, "float16"))).numpy(),
            rounded(mlp_on(model, rounded(X, "float16")), "bfloat16"),
        )
        amp.undecorate(model)
        assert np.array_equal(model(tensor(X)).numpy(), plain)

    def test_data_parallel_is_decorated_inside(self) -> None:
        model = mlp()
        with pytest.warns(UserWarning, match="single-card"):
            parallel = paddle.DataParallel(model)
        amp.decorate(parallel, policy=amp.Policy("O2", "bfloat16", keep=["3"]))
        assert low_dtype_of(model[0].weight) == "bfloat16"
        assert low_dtype_of(model[3].weight) is None
        _, grads = amp.value_and_grad(
            cross_entropy, parallel, X, LABELS, policy=amp.Policy("O2", "bfloat16", keep=["3"])
        )
        assert is_representable(grads[0], "bfloat16")
        amp.undecorate(parallel)
        assert type(model) is nn.Sequential

    @pytest.mark.parametrize(
        "policy, hint",
        [
            (amp.Policy("O2", execution="native"), "execution='simulated'"),
            (amp.Policy("O2", lists="native"), "lists='paddle'"),
        ],
    )
    def test_what_a_cpu_cannot_give_is_refused(self, policy: amp.Policy, hint: str) -> None:
        model = mlp()
        with pytest.raises(amp.UnsupportedError, match=hint):
            amp.decorate(model, policy=policy)
        assert type(model) is nn.Sequential


def mlp_on(model: nn.Layer, x: np.ndarray) -> np.ndarray:
    """In plain float32, layer by layer."""
    hidden = tensor(x)
    for layer in model:
        hidden = layer(hidden)
    return hidden.numpy()


class TestLoopsByHand:
    """``scale``, ``backward``, ``step``, ``update``: against the same loop written out by hand."""

    @pytest.mark.parametrize("loop", ["step", "minimize"])
    def test_masters_are_stepped_by_rounded_gradients(self, loop: str) -> None:
        paddle.seed(1)
        model, reference = mlp(), mlp()
        reference.set_state_dict(model.state_dict())
        scaler = amp.GradScaler(2.0**24, growth_interval=3)
        optimizer = paddle.optimizer.Adam(1e-2, parameters=model.parameters())
        by_hand = paddle.optimizer.Adam(1e-2, parameters=reference.parameters())
        amp.decorate(model, optimizer, "O2")
        scale, good, skipped = 2.0**24, 0, []
        for step in range(20):
            scaled = scaler.scale(cross_entropy(model, tensor(X), tensor(LABELS)))
            scaled.backward()
            if loop == "step":
                scaler.step(optimizer)
                scaler.update()
            else:
                scaler.minimize(optimizer, scaled)
            optimizer.clear_grad()

            low = copied_in_low_precision(reference)
            (cross_entropy_of_low(low) * scale).backward()
            grads = [p.grad.numpy() for p in low.parameters()]
            low_ones = [i not in (2, 3) for i in range(6)]
            grads = [
                rounded(g, "float16") if is_low else g
                for g, is_low in zip(grads, low_ones, strict=True)
            ]
            if all(np.isfinite(g).all() for g in grads):
                for p, g in zip(reference.parameters(), grads, strict=True):
                    p.grad = tensor(g / np.float32(scale))
                by_hand.step()
                by_hand.clear_grad()
                good += 1
                if good == 3:
                    scale, good = scale * 2, 0
            else:
                skipped.append(step)
                scale, good = scale / 2, 0
            assert scaler.get_scale() == scale, step
            same = [
                np.array_equal(a, b) for a, b in zip(values(model), values(reference), strict=True)
            ]
            assert all(same), step
        assert len(skipped) > 3


def copied_in_low_precision(reference: nn.Layer) -> nn.Layer:
    """Its parameters, but for layer norm's, rounded to float16."""
    low = mlp()
    for index, (mine, theirs) in enumerate(zip(low.parameters(), values(reference), strict=True)):
        mine.set_value(theirs if index in (2, 3) else rounded(theirs, "float16"))
    return low


def cross_entropy_of_low(low: nn.Layer) -> Any:
    """At O1, whose ops are those of O2; inputs and outputs are what O2 makes of them."""
    with amp.autocast("O1", "paddle"):
        output = low(tensor(rounded(X, "float16")).astype("float16"))
    return F.cross_entropy(output, tensor(LABELS))


class TestOutsideOfSteps:
    def test_an_average_of_weights_is_that_of_the_masters(self) -> None:
        model = nn.Linear(4, 3)
        step = amp.train_step(
            lambda model, x: (model(x) ** 2).mean(), model, sgd(model, 1e-3), policy="O2:bfloat16"
        )
        average = [p.numpy() for p in model.parameters()]
        exact = [value.astype(np.float64) for value in average]
        first = [value.copy() for value in average]
        for _ in range(60):
            step(normal(5, 4))
            with amp.undecorated(model):
                present = [p.numpy() for p in model.parameters()]
            average = [
                0.999 * a + np.float32(0.001) * p for a, p in zip(average, present, strict=True)
            ]
            masters = step._backend.read_weights(model).values()
            exact = [0.999 * e + 0.001 * m for e, m in zip(exact, masters, strict=True)]
        for value, expected, begin in zip(average, exact, first, strict=True):
            assert np.abs(value - expected).max() < 1e-6
            assert np.abs(expected - begin).max() > 1e-5

    def test_what_is_saved_is_float32(self, tmp_path: Path) -> None:
        model = nn.Linear(4, 3)
        exact = model.weight.numpy()
        amp.decorate(model, policy="O2:bfloat16")
        paddle.save(model.state_dict(), str(tmp_path / "state"))
        assert np.array_equal(paddle.load(str(tmp_path / "state"))["weight"].numpy(), exact)
        x = paddle.static.InputSpec([None, 4], "float32")
        paddle.jit.save(model, str(tmp_path / "program"), input_spec=[x])
        loaded = paddle.jit.load(str(tmp_path / "program"))
        assert any(np.array_equal(p.numpy(), exact) for p in loaded.parameters())

    def test_half_ahead_of_a_policy_warns(self) -> None:
        model = nn.Linear(4, 3).to(dtype="bfloat16")  # .bfloat16() refuses on some CPUs
        with pytest.warns(
            amp.AmpBridgeWarning,
            match=r"(?s)model are in 16 bits by themselves: weight, bias\..*Hint",
        ):
            amp.decorate(model, policy="O1:bfloat16")

    def test_a_weight_without_a_value_is_not_looked_at(self) -> None:
        with paddle.LazyGuard():
            lazy = nn.Linear(4, 3)
        empty = nn.Linear(0, 4, bias_attr=False)
        model = nn.Sequential(lazy, nn.Linear(3, 3), empty)
        model[1].bias.set_value(np.float32([0, -7e4, 0]))
        with pytest.warns(amp.AmpBridgeWarning, match=r": 1\.bias \(70000\)\. (?s:.*)keep=\['1'\]"):
            amp.decorate(model)


def test_an_undecorated_model_s_gradients_are_not_rounded() -> None:
    """Nor do parameters that were never low, or are frozen, have a hook to take away."""
    model, plain = mlp(), mlp()
    plain.set_state_dict(model.state_dict())
    for each in (model, plain):
        each[0].bias.stop_gradient = True
    amp.decorate(model, sgd(model), "O2:bfloat16")
    assert low_dtype_of(model[0].weight) == low_dtype_of(model[0].bias) == "bfloat16"
    amp.undecorate(model)
    make_full(model.parameters())
    assert {low_dtype_of(p) for p in model.parameters()} == {None}
    gradients = []
    for each in (model, plain):
        cross_entropy(each, tensor(X), tensor(LABELS)).backward()
        gradients.append([p.grad.numpy() for p in each.parameters() if not p.stop_gradient])
    assert not is_representable(gradients[0][0], "bfloat16")
    for actual, expected in zip(*gradients, strict=True):
        assert actual.tobytes() == expected.tobytes()


def test_layers_that_share_a_parameter_with_a_kept_one_are_left_out() -> None:
    """Paddle's own O2 casts all parameters of layers that it is not told to leave out."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    low = low_tensors(model, [model[0]])
    assert id(model[0].weight) not in {id(p) for p in low.parameters}
    assert {id(layer) for layer in low.left_out} == {id(model[0]), id(model[1])}
