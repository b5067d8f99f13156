"""Devices, a model's products and ``explain``: held against what TensorFlow is seen to run."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest

from ampbridge_testing import import_or_skip

import_or_skip("tensorflow")
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from recorder import eager  # noqa: E402
from test_ops import OPS, inputs  # noqa: E402

import ampbridge as amp  # noqa: E402
import ampbridge_tensorflow  # noqa: E402
from ampbridge.adapters.backend import Decoration  # noqa: E402
from ampbridge.policies import hardware  # noqa: E402
from ampbridge.reports.explain import FEATURES  # noqa: E402

BACKEND = amp.backend("tensorflow")
NATIVE = amp.Policy("O1", "bfloat16", execution="native")
on_cpu = pytest.mark.skipif(
    bool(tf.config.list_physical_devices("GPU")), reason="the kernels of a CPU"
)

# -- devices


def test_the_cpu_comes_last() -> None:
    devices = BACKEND.devices()
    assert devices[-1].name == "cpu"
    assert len(devices) == len(tf.config.list_logical_devices())


def test_a_gpu_and_a_tpu_by_what_tensorflow_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one."""
    named = {kind: [tf.config.LogicalDevice(f"/device:{kind}:0", kind)] for kind in ("TPU", "GPU")}
    details = {"device_name": "A GPU", "compute_capability": (8, 9)}
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: named.get(kind, []))
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["physical"])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda device: details)
    assert BACKEND.devices() == [
        ("tpu:0", "tpu", "TPU", None, ()),
        ("gpu:0", "gpu", "A GPU", (8, 9), ()),
    ]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_dtype_fails_if_and_only_if_tensorflow_fails_in_it(dtype: str) -> None:
    for device in BACKEND.devices():
        with tf.device(device.name), tf.GradientTape() as tape:
            x = tf.ones((8, 8), dtype)
            tape.watch(x)
            try:
                works = tape.gradient(tf.matmul(x, x), x).dtype == dtype
            except tf.errors.OpError:
                works = False
        assert (dtype not in BACKEND.probe(device).failures) == works


def test_a_dtype_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    matmul = tf.matmul

    def failing(x: Any, y: Any) -> Any:
        if x.dtype == tf.bfloat16:
            raise tf.errors.NotFoundError(None, None, "no kernel for bfloat16\nC++ stack")
        return matmul(x, y)

    monkeypatch.setattr(tf, "matmul", failing)
    assert BACKEND.probe(BACKEND.devices()[-1]).failures == {"bfloat16": "no kernel for bfloat16"}


def test_probing_sees_tensorflow_and_not_the_caller_s_region() -> None:
    with amp.autocast("O1:bfloat16", backend="tensorflow"):
        assert "float32" not in BACKEND.probe(BACKEND.devices()[-1]).failures


def test_xla_is_tried() -> None:
    assert BACKEND.probe(BACKEND.devices()[-1]).settings["XLA"] == "compiles"


def test_xla_is_tried_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorFlow warns at the fifth trace of a function of one name, and would be right."""
    monkeypatch.setattr(logging.getLogger("tensorflow"), "propagate", True)
    for _ in range(6):
        BACKEND.probe(BACKEND.devices()[-1])
    assert "retracing" not in caplog.text


def test_what_auto_is_stands_among_the_settings_where_the_environment_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for asked, setting in (("auto", None), ("native", "native, by AMPBRIDGE_CPU_EXECUTION")):
        monkeypatch.setattr(hardware, "asked_execution", lambda asked=asked: asked)
        settings = BACKEND.probe(BACKEND.devices()[-1]).settings
        assert settings.get("execution='auto'") == setting


@on_cpu
def test_auto_favours_bfloat16_where_the_cpu_multiplies_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Other tests of this process compare with NumPy's adapter, which would be asked as well.
    monkeypatch.delitem(sys.modules, "ampbridge_numpy", raising=False)
    flags = BACKEND.devices()[0].bfloat16_instructions
    assert str(amp.Policy.auto()) == ("O1:bfloat16" if flags else "O0")


# -- models


def test_the_products_of_a_model() -> None:
    layers = keras.layers
    image = keras.Input((32, 32, 3))
    x = layers.Conv2D(30, 5, name="conv")(image)
    x = layers.DepthwiseConv2D(3, name="depthwise")(x)
    x = layers.Conv2DTranspose(16, 4, name="transposed")(x)
    x = layers.Reshape((-1, 16))(x)
    x = layers.MultiHeadAttention(4, 8, name="attention")(x, x)
    x = layers.LSTM(20, name="lstm")(x)
    model = keras.Model(image, layers.Dense(10, name="head")(x))
    assert sorted(product[1:] for product in BACKEND.products(model)) == sorted(
        [
            ("Conv2D", 3, 30, 25),
            ("Conv2DTranspose", 30, 16, 16),
            *[("EinsumDense", 16, 32, 1)] * 3,
            ("EinsumDense", 32, 16, 1),
            ("LSTMCell", 16, 80, 1),
            ("LSTMCell", 20, 80, 1),
            ("Dense", 20, 10, 1),
        ]
    )


def test_a_model_that_is_not_built() -> None:
    model = keras.Sequential([keras.layers.Dense(8)])
    assert BACKEND.products(model) == []
    report = amp.doctor(model).model
    assert report is not None
    assert [finding.what for finding in report.findings] == [
        "no parameters yet: build it, or call it once"
    ]


def test_doctor_of_a_model() -> None:
    dense = keras.layers.Dense
    model = keras.Sequential([dense(250, name="a"), dense(256, dtype="float64", name="b")])
    model.build((None, 256))
    report = amp.doctor(model).model
    assert report is not None
    assert [(f.layer.rpartition(".")[2], f.what.partition(":")[0]) for f in report.findings] == [
        ("b", "float64 parameters (2)"),
        ("a", "250 outputs"),
        ("b", "250 inputs"),
    ]


# -- explain: ops; in which dtype they run stands in test_ops.py


def test_an_op_that_is_shared_says_with_whom() -> None:
    row = amp.explain(amp.Policy(deny=["tensordot"]), "tensorflow").op("matmul")
    assert (row.category, row.dtype, row.why) == ("deny", "float32", "one with tensordot (MatMul)")


@on_cpu
def test_an_op_without_a_kernel_says_so() -> None:
    row = amp.explain(NATIVE, "tensorflow").op("svd")
    assert (row.category, row.dtype) == ("promote", "float32")
    assert row.why == "Svd has no bfloat16 kernel"


def test_what_neither_tensorflow_nor_keras_has_is_absent() -> None:
    assert amp.explain("O1:bfloat16", "tensorflow").op("swiglu").by == "absent"


def test_simulated_ops_compute_in_float32_and_round() -> None:
    policy = amp.Policy("O1", "bfloat16", execution="simulated")
    table = amp.explain(policy, "tensorflow")
    for op in ("matmul", "tanh", "softmax"):
        watched, call = OPS[op]
        x, y = inputs("bfloat16", "bfloat16")
        result, seen = eager(amp.autocast(policy, backend="tensorflow")(call), x, y)
        assert {dtype for ran, dtype in seen if ran == watched} == {"float32"}, op
        low = result.dtype == tf.bfloat16
        assert table.op(op).by == ("simulated" if low else "ampbridge"), op


# -- explain: features


def decorate(policy: amp.Policy, **options: Any) -> Callable[[], object]:
    def call() -> None:
        model = keras.Sequential([keras.layers.Dense(8, name="d")])
        model.build((None, 8))
        BACKEND.decorate(model, keras.optimizers.SGD(0.1), Decoration(policy, **options))

    return call


def built() -> keras.Model:
    model = keras.Sequential([keras.layers.Dense(8, name="d")])
    model.build((None, 8))
    return model


def keep() -> None:
    amp.decorate(built(), policy=amp.Policy("O2", "bfloat16", keep=["Dense"]))


def region(**fields: Any) -> Callable[[], object]:
    def call() -> None:
        with BACKEND.autocast(amp.Policy("O1", "bfloat16", **fields)):
            pass

    return call


O2 = amp.Policy("O2", "bfloat16")
ATTEMPTS: dict[str, Callable[[], object]] = {
    "O1": region(),
    "O2": decorate(O2),
    "keep": keep,
    "output_dtype": decorate(O2.replace(output_dtype="float16")),
    "masters='float32'": decorate(O2),
    "masters='kahan'": lambda: amp.decorate(built(), policy=O2.replace(masters="kahan")),
    "masters='stochastic'": lambda: amp.decorate(built(), policy=O2.replace(masters="stochastic")),
    "masters=None": decorate(O2.replace(masters=None)),
    "slots='bfloat16'": lambda: amp.decorate(
        built(), keras.optimizers.Adam(), O2.replace(slots="bfloat16")
    ),
    "save_dtype": decorate(O2, save_dtype="float16"),
    "master_grad": decorate(O2, master_grad=True),
    "lists='native'": region(lists="native"),
    "execution='native'": region(execution="native"),
    "execution='simulated'": region(execution="simulated"),
    "compile=True": lambda: BACKEND.compile(lambda loss_fn: loss_fn, tf.reduce_sum),
}


@pytest.mark.parametrize("feature", ATTEMPTS)
def test_a_feature_is_refused_if_and_only_if_explain_says_so(feature: str) -> None:
    try:
        ATTEMPTS[feature]()
        refused = False
    except amp.UnsupportedError:
        refused = True
    row = amp.explain("O1:bfloat16", "tensorflow").feature(feature)
    assert (row.by == "refused") == refused, row
    assert row.why


def test_what_fit_needs_is_there() -> None:
    assert (
        "ampbridge_tensorflow.LossScaleOptimizer"
        in amp.explain("O1:bfloat16", "tensorflow").feature("fit").why
    )
    assert callable(ampbridge_tensorflow.LossScaleOptimizer)


def test_every_feature_is_explained() -> None:
    for policy in ("O0", "O1", "O2:bfloat16"):
        assert tuple(row.feature for row in amp.explain(policy, "tensorflow").features) == FEATURES


def test_recomputation_runs_under_the_same_rules() -> None:
    w = tf.Variable(tf.random.normal((8, 8)))
    twice = tf.recompute_grad(lambda x: tf.tanh(tf.matmul(x, w)))

    def gradient() -> Any:
        with tf.GradientTape() as tape, amp.autocast(NATIVE, backend="tensorflow"):
            loss = tf.reduce_sum(twice(tf.ones((8, 8))))
        return tape.gradient(loss, w)

    _, seen = eager(gradient)
    assert [dtype for op, dtype in seen if op == "Tanh"] == ["bfloat16"] * 2


def test_a_refused_policy_is_refused() -> None:
    with pytest.raises(amp.UnsupportedError, match="Hint: "):
        amp.explain(amp.Policy(lists="native"), "tensorflow")
