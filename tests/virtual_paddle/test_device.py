"""The device itself: tensors are on it, its kernels round once, what it did can be told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest
import virtual_gpu
from paddle.nn import functional as F
from paddle_reference import LOW, rounded

import ampbridge as amp

HERE = Path(__file__).parent
LOW_DTYPES = pytest.mark.parametrize("dtype", LOW)


def values(*shape: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-20, 18, shape)).astype(np.float32)


def in_float32(x: paddle.Tensor) -> np.ndarray:
    return x.astype("float32").numpy()


def test_it_is_the_present_device() -> None:
    assert paddle.device.get_device() == "virtual_gpu:0"
    assert str(paddle.ones([2]).place) == "Place(virtual_gpu:0)"


@LOW_DTYPES
def test_casts_round_to_nearest_even(dtype: str) -> None:
    # Ties, overflow, subnormals, and where Paddle's own float16 is wrong (6e-25).
    special = [1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 65519.0, 65520.0, 2.0**-25, 6e-25, -0.0]
    x = np.concatenate([values(1000), np.array([*special, np.inf, np.nan], np.float32)])
    assert np.array_equal(in_float32(paddle.to_tensor(x).astype(dtype)), rounded(x, dtype), True)


@LOW_DTYPES
def test_a_product_is_computed_in_float32_and_rounded_once(dtype: str) -> None:
    left, right = (rounded(np.random.default_rng(i).random((16, 16)), dtype) for i in range(2))
    x, y = (paddle.to_tensor(each).astype(dtype) for each in (left, right))
    product = paddle.matmul(x, y)
    assert str(product.dtype) == f"paddle.{dtype}"
    assert np.array_equal(in_float32(product), rounded(left @ right, dtype))


@LOW_DTYPES
def test_a_gradient_is_computed_in_float32_and_rounded_once(dtype: str) -> None:
    array = rounded(np.random.default_rng(0).standard_normal((64,)), dtype)
    x = paddle.to_tensor(array).astype(dtype)
    x.stop_gradient = False
    (gradient,) = paddle.grad([paddle.tanh(x)], [x])
    output = rounded(np.tanh(array), dtype)
    assert np.array_equal(in_float32(gradient), rounded(1 - output * output, dtype))


@LOW_DTYPES
@pytest.mark.parametrize("kind", ["SGD", "Momentum", "Adam", "AdamW"])
def test_a_parameter_is_its_master_rounded(kind: str, dtype: str) -> None:
    layer = paddle.nn.Linear(4, 3)
    optimizer = getattr(paddle.optimizer, kind)(0.01, parameters=layer.parameters())
    layer, optimizer = paddle.amp.decorate(layer, optimizer, level="O2", dtype=dtype)
    before = layer.weight.astype("float32").numpy()
    for _ in range(3):
        layer(paddle.ones([2, 4], dtype)).sum().backward()
        optimizer.step()
        optimizer.clear_grad()
    master = optimizer._master_weights[layer.weight.name].numpy()
    assert not np.array_equal(master, rounded(master, dtype))
    assert not np.array_equal(in_float32(layer.weight), before)
    assert np.array_equal(in_float32(layer.weight), rounded(master, dtype))


def test_running_statistics_move() -> None:
    norm = paddle.nn.BatchNorm1D(3, momentum=0.5)
    norm(paddle.to_tensor(np.arange(12, dtype=np.float32).reshape(4, 3)))
    assert norm._mean.numpy().tolist() == [2.25, 2.75, 3.25]


def test_views_and_arithmetic_in_place() -> None:
    x = paddle.arange(6, dtype="float32").astype("float16").reshape([2, 3])
    x.t()[1].add_(paddle.ones([2], "float16"))
    assert in_float32(x).tolist() == [[0, 2, 2], [3, 5, 5]]


def test_a_compiled_program_runs_on_it() -> None:
    @paddle.jit.to_static(full_graph=True)
    def program(x: paddle.Tensor) -> paddle.Tensor:
        return paddle.assign(F.relu(paddle.matmul(x, x)))

    with virtual_gpu.watched() as seen:
        result = program(paddle.ones([2, 2], "float16"))
    assert seen.calls["matmul float16"] == 1
    assert result.dtype == paddle.float16
    assert in_float32(result).tolist() == [[2, 2], [2, 2]]


def test_what_the_host_reads_and_writes_is_counted() -> None:
    x = paddle.ones([4])
    with virtual_gpu.watched() as computing:
        y = paddle.where(x > 0, x + 1, x).sum() * paddle.argmax(x)
    assert (computing.reads, computing.writes) == (0, 0)
    with virtual_gpu.watched() as reading:
        y.item()
        y.numpy()
    assert reading.reads == 2
    with virtual_gpu.watched() as writing:
        paddle.to_tensor([1.0, 2.0])
    assert writing.writes == 1


def test_calls_are_counted_with_their_dtypes() -> None:
    x = paddle.ones([2, 2])
    with virtual_gpu.watched() as seen:
        paddle.matmul(x.astype("bfloat16"), x.astype("bfloat16"))
    assert seen.calls == {"cast float32->bfloat16": 2, "matmul bfloat16": 1}


def test_our_adapter_knows_the_device_and_what_it_is_good_for() -> None:
    names = [device.name for device in amp.backend("paddle").devices()]
    assert names == ["virtual_gpu:0", "cpu"]
    assert amp.backend("paddle").probe(amp.backend("paddle").devices()[0]).failures == {}
    assert amp.Policy.auto() == amp.Policy("O1", "bfloat16")


def test_a_script_runs_on_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nimport paddle\n"
        "paddle.set_device('gpu:0')\n"
        "layer = paddle.nn.Linear(2, 2).to('gpu')\n"
        "with paddle.amp.auto_cast():\n"
        "    print(layer(paddle.ones([1, 2])).dtype, paddle.device.get_device(), *sys.argv[1:])\n"
    )
    command = [sys.executable, "-W", "ignore", str(HERE / "on_the_device.py"), str(script), "--one"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "paddle.float16 virtual_gpu:0 --one\n", done.stderr


def test_a_script_that_is_not_there_is_said_in_one_message() -> None:
    command = [sys.executable, "-W", "ignore", str(HERE / "on_the_device.py"), "other.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("There is no script 'other.py'.\nHint: ")
    assert "Traceback" not in done.stderr
