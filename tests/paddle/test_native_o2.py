"""O2 as a GPU would be given it. There is none here: ``paddle.amp.decorate`` is a stand-in.

The stand-in notes its arguments and does to the model, on a CPU, what Paddle does on a GPU, by Paddle's
own function. So casts and the way back are real; no 16-bit parameter is stepped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
import pytest
from fleet_objects import Wrapper, sharded
from paddle import nn
from paddle.amp.auto_cast import amp_global_state, amp_initialize
from paddle_reference import normal, rounded

import ampbridge as amp
from ampbridge_paddle import training_state
from ampbridge_paddle.autocast import execution


def model() -> nn.Layer:
    made = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 2))
    made[0].register_buffer("table", paddle.to_tensor(normal(3)))
    return made


def adam(layer: nn.Layer) -> paddle.optimizer.Optimizer:
    return paddle.optimizer.Adam(0.1, parameters=layer.parameters())


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    made: list[dict[str, Any]] = []

    def decorate(**arguments: Any) -> None:
        made.append(arguments)
        amp_initialize(
            [arguments["models"]], arguments["dtype"], list(arguments["excluded_layers"])
        )
        if arguments["master_grad"]:
            amp_global_state().use_master_grad = True
            amp_global_state().model_parameters.extend(arguments["models"].parameters())

    amp.backend("paddle")  # loaded first: it looks up Paddle's own function when it is imported
    monkeypatch.setattr(paddle.amp, "decorate", decorate)
    monkeypatch.setattr(execution, "on_cpu", lambda: False)
    yield made
    assert amp_global_state().model_parameters == []
    assert not amp_global_state().use_master_grad


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("master_grad", [False, True])
def test_arguments(calls: list[dict[str, Any]], dtype: str, master_grad: bool) -> None:
    net = model()
    optimizer = adam(net)
    policy = amp.Policy("O2", dtype, keep=["3"])
    amp.decorate(net, optimizer, policy, master_grad=master_grad)
    (arguments,) = calls
    excluded = arguments.pop("excluded_layers")
    assert arguments == {
        "models": net,
        "level": "O2",
        "dtype": dtype,
        "master_grad": master_grad,
    }
    assert optimizer._multi_precision
    assert {id(layer) for layer in excluded} == {id(net[1]), id(net[3])}
    amp.undecorate(net, optimizer)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_there_and_back(calls: list[dict[str, Any]], dtype: str) -> None:
    net = model()
    optimizer = adam(net)
    tensors = [*net.parameters(), *net.buffers()]
    exact = [x.numpy() for x in tensors]
    attributes = {name: vars(layer).copy() for name, layer in net.named_sublayers()}
    amp.decorate(net, optimizer, amp.Policy("O2", dtype, keep=["3"]))
    low = [str(p.dtype) for p in net.parameters()]
    assert (
        low
        == [f"paddle.{dtype}"] * 2
        + ["paddle.float32"] * 2
        + [f"paddle.{dtype}"] * 2
        + ["paddle.float32"] * 2
    )
    assert net[0].table.numpy().tobytes() == exact[-1].tobytes()
    read = net[0].weight.astype("float32").numpy()
    assert np.array_equal(read, rounded(exact[0], dtype))
    masters = optimizer._master_weights
    assert set(masters) == {p.name for p in [*net[0].parameters(), *net[2].parameters()]}
    assert np.array_equal(masters[net[0].weight.name].numpy(), exact[0])
    amp.undecorate(net, optimizer)
    assert [x.numpy().tobytes() for x in [*net.parameters(), *net.buffers()]] == [
        e.tobytes() for e in exact
    ]
    assert [id(p) for p in net.parameters()] == [id(x) for x in tensors[:-1]]
    assert (optimizer._master_weights, optimizer._multi_precision) == ({}, False)
    for name, layer in net.named_sublayers():
        before = {k: v for k, v in attributes[name].items() if not isinstance(v, dict)}
        assert {k: vars(layer)[k] for k in before} == before


def test_masters_are_what_comes_back_after_training(calls: list[dict[str, Any]]) -> None:
    net = model()
    optimizer = adam(net)
    amp.decorate(net, optimizer, "O2")
    moved = {name: master + 2.0**-20 for name, master in optimizer._master_weights.items()}
    optimizer._master_weights.update(moved)  # as loading the optimizer's state does
    amp.undecorate(net, optimizer)
    for p in net[0].parameters():
        assert np.array_equal(p.numpy(), moved[p.name].numpy())


def test_slots_are_found_under_the_same_name(calls: list[dict[str, Any]]) -> None:
    """Paddle looks for them under the name of the master where there is one."""
    net = model()
    optimizer = adam(net)
    net(paddle.ones([1, 4])).sum().backward()
    optimizer.step()
    moment = optimizer._get_accumulator_master("moment1", net[0].weight)
    assert moment.numpy().any()
    amp.decorate(net, optimizer, "O2")
    assert net[0].weight.dtype == paddle.float16
    assert optimizer._get_accumulator_master("moment1", net[0].weight) is moment
    amp.undecorate(net, optimizer)
    assert optimizer._get_accumulator_master("moment1", net[0].weight) is moment


def test_without_masters(calls: list[dict[str, Any]]) -> None:
    net = model()
    optimizer = adam(net)
    exact = net[0].weight.numpy()
    amp.decorate(net, optimizer, amp.Policy("O2", "bfloat16", masters=None))
    assert not optimizer._multi_precision
    assert optimizer._master_weights == {}
    amp.undecorate(net, optimizer)
    assert np.array_equal(net[0].weight.numpy(), rounded(exact, "bfloat16"))


def test_another_optimizer_is_decorated_anew(calls: list[dict[str, Any]]) -> None:
    net = model()
    optimizer = adam(net)
    amp.decorate(net, optimizer, "O2")
    backend = amp.backend("paddle")
    assert backend.decoration(net, optimizer) is not None
    assert backend.decoration(net, None) is not None
    assert backend.decoration(net, adam(net)) is None
    amp.undecorate(net, optimizer)


def test_a_wrapped_optimizer_is_refused(calls: list[dict[str, Any]]) -> None:
    net = model()
    with pytest.raises(amp.UnsupportedError, match=r"Wrapper.*\nHint: decorate before fleet"):
        amp.decorate(net, Wrapper(adam(net)), "O2")
    assert calls == []


def test_one_that_is_wrapped_afterwards_is_served(calls: list[dict[str, Any]]) -> None:
    net = model()
    optimizer = adam(net)
    amp.decorate(net, optimizer, "O2")
    assert amp.backend("paddle").decoration(net, Wrapper(optimizer)) is not None
    amp.undecorate(net, Wrapper(optimizer))


def test_a_sharded_optimizer_is_refused(calls: list[dict[str, Any]]) -> None:
    """Also one that is sharded after it was decorated."""
    net = model()
    optimizer = adam(net)
    with pytest.raises(amp.UnsupportedError, match=r"on one rank alone.*\nHint: policy='O1'"):
        amp.decorate(net, sharded(optimizer), "O2")
    assert calls == []
    amp.decorate(net, optimizer, "O2")
    assert amp.backend("paddle").decoration(net, sharded(optimizer)) is None
    amp.undecorate(net, optimizer)


def test_data_parallel_has_to_come_after(calls: list[dict[str, Any]]) -> None:
    with pytest.warns(UserWarning, match="single-card"):
        parallel = paddle.DataParallel(model())
    with pytest.raises(amp.UnsupportedError, match=r"Hint: .*then paddle\.DataParallel\(model\)"):
        amp.decorate(parallel, policy="O2")
    assert calls == []


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD", "Momentum"])
def test_kernels_get_gradients_in_the_dtype_that_they_take(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """After the optimizer's clipping, which gets them in float32."""
    seen: list[tuple[str, list[Any]]] = []

    def note(where: str, pairs: Any) -> Any:
        seen.append((where, [grad.dtype for _, grad in pairs]))
        return pairs

    class Clip(nn.clip.ClipGradBase):  # type: ignore[misc]
        def __call__(self, pairs: Any) -> Any:
            return note("clip", pairs)

    monkeypatch.setattr(
        paddle.optimizer.Optimizer,
        "_create_optimization_pass",
        lambda self, pairs, *args, **kwargs: note("kernels", pairs),
    )
    low, wide = (paddle.create_parameter([2], dtype) for dtype in ("float16", "float32"))
    optimizer = getattr(paddle.optimizer, kind)(parameters=[low, wide], grad_clip=Clip())
    grads = [paddle.ones([2]), paddle.ones([2])]
    amp.backend("paddle").step(Wrapper(optimizer), [low, wide], grads)
    taken = paddle.float32 if kind.startswith("Adam") else paddle.float16
    assert seen == [
        ("clip", [paddle.float32, paddle.float32]),
        ("kernels", [taken, paddle.float32]),
    ]
    assert "_create_optimization_pass" not in vars(optimizer)


def test_execution() -> None:
    backend = amp.backend("paddle")
    assert backend.execution(amp.Policy("O0")) == "native"
    assert backend.execution(amp.Policy("O2")) == "simulated"
    assert backend.execution(amp.Policy("O1", execution="simulated")) == "simulated"
    with pytest.raises(amp.UnsupportedError, match="Hint: execution='simulated'"):
        backend.execution(amp.Policy("O2", execution="native"))


def test_execution_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "on_cpu", lambda: False)
    backend = amp.backend("paddle")
    assert backend.execution(amp.Policy("O2")) == "native"
    with pytest.raises(amp.UnsupportedError, match="Hint: execution='auto'"):
        backend.execution(amp.Policy("O2", execution="simulated"))


def test_a_training_state_has_masters_and_slots_under_the_weights_names(
    calls: list[dict[str, Any]],
) -> None:
    net, other = model(), model()
    optimizer, target = adam(net), adam(other)
    for layer, its in ((net, optimizer), (other, target)):
        amp.decorate(layer, its, "O2")
    masters = optimizer._master_weights
    optimizer._create_accumulators(
        paddle.static.default_main_program().global_block(), net[2].parameters()
    )
    moment = optimizer._get_accumulator_master("moment1", net[2].weight)
    moment.set_value(normal(4, 4, seed=5))

    values = training_state.read_weights(net)
    state = training_state.read_optimizer(optimizer, net)
    assert {array.dtype for array in values.values()} == {np.dtype(np.float32)}
    assert np.array_equal(values["2.weight"], masters[net[2].weight.name].numpy())
    assert not np.array_equal(values["2.weight"], rounded(values["2.weight"], "float16"))
    assert {name.rpartition("/")[0] for name in state.slots} == {"2.weight", "2.bias"}

    training_state.write_weights(other, values)
    training_state.write_optimizer(target, other, state)
    copied = target._get_accumulator_master("moment1", other[2].weight)
    assert copied.numpy().tobytes() == moment.numpy().tobytes()
    assert other[2].weight.dtype == paddle.float16
    assert other[2].weight.numpy().tobytes() == net[2].weight.numpy().tobytes()
    for layer, its in ((net, optimizer), (other, target)):
        amp.undecorate(layer, its)
    back = training_state.read_weights(other)
    assert {name: array.tobytes() for name, array in back.items()} == {
        name: array.tobytes() for name, array in values.items()
    }
