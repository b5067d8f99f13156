"""Replicas and workers: an overflow on one of them alone skips the step on all.

``MirroredStrategy`` runs in a process of its own, whose CPU counts as three devices; and
``MultiWorkerMirroredStrategy`` in two and three. What they come to is held against loops by hand, in
this process, over the replicas' examples as one batch.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from on_replicas import OVERFLOWS, STEPS, Embedding, dense, inputs, loss_fn, native

from ampbridge.checkpoints import checkpoint

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "distributed" / "tensorflow_strategies.py"

FINITE_STEPS = [number for number in range(STEPS) if number not in OVERFLOWS]
# 64, doubled after two finite steps, halved after a skip.
SCALES = [64.0, 64.0, 128.0, 64.0, 64.0, 128.0, 64.0, 64.0]
LAST_STATE = [128.0, *[0.0] * 8]  # the scale; no steps that are counted, no alarm that was due

Batch = tuple[np.ndarray, ...]


def environment(**more: str) -> dict[str, str]:
    settings = {"CUDA_VISIBLE_DEVICES": "-1", "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return {**os.environ, **settings, **more}


def run(script: Path, *arguments: str) -> str:
    """What a script prints."""
    command = [sys.executable, "-W", "ignore", str(script), *arguments]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def start_workers(count: int, script: Path, *arguments: str) -> list[subprocess.Popen[str]]:
    """One process for each worker, told of the others as a cluster's scheduler would."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    places = [{"type": "worker", "index": number} for number in range(count)]
    return [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(script), *arguments],
            env=environment(
                TF_CONFIG=json.dumps({"cluster": {"worker": addresses}, "task": place})
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for place in places
    ]


def on_workers(count: int, script: Path, *arguments: str) -> list[str]:
    """What each worker prints."""
    workers = start_workers(count, script, *arguments)
    try:
        printed = [worker.communicate() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0] * count, printed
    return [out for out, _ in printed]


# -- loops by hand


def by_hand(
    model: Any, optimizer: Any, batches: Sequence[Any], loss: Callable[..., Any]
) -> list[float]:
    """Trains in float32 as one process would; the norms of the gradients."""
    norms = []
    for batch in batches:
        with tf.GradientTape() as tape:
            value = loss(model, batch)
        weights = [native(variable) for variable in model.trainable_variables]
        grads = tape.gradient(value, weights)
        norms.append(float(tf.linalg.global_norm(grads)))
        optimizer.apply(grads, model.trainable_variables)
    return norms


def joint(replicas: int, numbers: Sequence[int]) -> list[np.ndarray]:
    """The examples of all replicas as one batch, for each of the steps."""
    steps = inputs(replicas)
    return [np.concatenate(steps[number][0]) for number in numbers]


def mean_loss(model: Any, x: np.ndarray) -> Any:
    return loss_fn(model, x, 1.0)


def values(*owners: Any) -> list[np.ndarray]:
    return [np.asarray(native(variable)) for owner in owners for variable in owner.variables]


def assert_alike(held: list[list[Any]], expected: Sequence[np.ndarray], within: float) -> None:
    """Replicas hold the same bits, which are near to what is expected."""
    assert all(replica == held[0] for replica in held)
    assert len(held[0]) == len(expected)
    for found, wanted in zip(held[0], expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=within)


# -- MirroredStrategy


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the scenarios in ``on_replicas.py`` have come to, by name."""
    printed = run(HERE / "on_replicas.py", str(tmp_path_factory.mktemp("replicas")))
    return dict(map(json.loads, printed.splitlines()))


@pytest.mark.parametrize("name, replicas", [("compiled 2", 2), ("compiled 3", 3), ("eager 2", 2)])
def test_all_replicas_skip_and_then_go_on_as_one_process_would(
    mirrored: dict[str, Any], name: str, replicas: int
) -> None:
    found = mirrored[name]
    assert found["reasons"] == [None, None, "inf", None, None, "nan", None, None]
    assert found["scales"] == SCALES
    assert found["scaler"] == [LAST_STATE] * replicas
    assert len(found["held"]) == replicas
    model, optimizer = dense(), keras.optimizers.Adam(0.1, global_clipnorm=0.5)
    norms = by_hand(model, optimizer, joint(replicas, FINITE_STEPS), mean_loss)
    assert_alike(found["held"], values(model, optimizer), within=1e-5)
    reported = [found["norms"][number] for number in FINITE_STEPS]
    np.testing.assert_allclose(reported, norms, rtol=1e-4)


def test_the_loss_is_the_mean_over_all_replicas(mirrored: dict[str, Any]) -> None:
    first = joint(3, [0])[0]
    assert mirrored["compiled 3"]["losses"][0] == pytest.approx(float(mean_loss(dense(), first)))


def test_low_precision_on_three_replicas(mirrored: dict[str, Any]) -> None:
    found = mirrored["low 3"]
    assert found["reasons"] == [None, None, "inf", None, None, "nan", None, None]
    assert found["scaler"] == [LAST_STATE] * 3
    model, optimizer = dense(), keras.optimizers.Adam(0.1)
    by_hand(model, optimizer, joint(3, FINITE_STEPS), mean_loss)
    assert_alike(found["held"], values(model, optimizer), within=0.02)


@pytest.mark.parametrize("name", ["by chance, compiled", "by chance, eager", "by chance, fit"])
def test_weights_and_moments_are_rounded_by_chance_to_the_same_bits_on_each_replica(
    mirrored: dict[str, Any], name: str
) -> None:
    found, model, optimizer = mirrored[name]["held"], dense(), keras.optimizers.Adam(0.1)
    finite = range(STEPS) if name == "by chance, fit" else FINITE_STEPS
    by_hand(model, optimizer, joint(2, finite), mean_loss)
    assert_alike(found, values(model, optimizer), within=0.05)
    kept = np.concatenate([np.ravel(np.float32(each)) for each in found[0] if np.ndim(each)])
    assert len(kept) == 3 * 47  # weights and two moments of each
    np.testing.assert_array_equal(kept, kept.astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize("name, replicas", [("own loop, compiled", 3), ("own loop, eager", 2)])
def test_a_loop_of_ones_own_with_two_optimizers(
    mirrored: dict[str, Any], name: str, replicas: int
) -> None:
    found = mirrored[name]
    applied = [[number not in OVERFLOWS, True] for number in range(STEPS)]
    assert found["applied"] == [[step] * replicas for step in applied]
    assert found["scaler"] == [LAST_STATE] * replicas
    models = dense(), dense()
    optimizers = keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.1)
    by_hand(models[0], optimizers[0], joint(replicas, FINITE_STEPS), mean_loss)
    by_hand(models[1], optimizers[1], joint(replicas, range(STEPS)), mean_loss)
    assert_alike(found["held"], values(*models, *optimizers), within=1e-5)


def test_gradients_that_nobody_unscales_are_averaged_too(mirrored: dict[str, Any]) -> None:
    model, optimizer = dense(), keras.optimizers.SGD(0.1)
    by_hand(model, optimizer, joint(2, range(STEPS)), mean_loss)
    assert_alike(mirrored["unscaled loop"]["held"], values(model, optimizer), within=1e-6)


@pytest.mark.parametrize("name, masters", [("module, compiled", False), ("module, eager", True)])
def test_variables_of_a_module_are_low_and_accumulate_sparse_gradients(
    mirrored: dict[str, Any], name: str, masters: bool
) -> None:
    found = mirrored[name]
    assert found["rounded"] is not masters
    assert found["seen"] == ["bfloat16", "bfloat16"]
    assert found["reasons"] == ["accumulating", None, "accumulating", None]
    assert found["overflows"] == {}
    assert (found["loaded"], found["went on"]) == (True, True)
    model, ids = Embedding(), np.array([0, 1, 1, 2, 1, 6])
    by_hand(
        model,
        keras.optimizers.SGD(0.5),
        [ids] * 3,
        lambda model, ids: tf.reduce_mean(tf.square(model(ids))),
    )
    # Steps of bfloat16 between 2 and 4: some CPUs' kernels add up in it, others in float32. Two steps
    # are rounded by chance, by less than one of them each.
    assert_alike(found["held"], values(model), within=(2 if masters else 4) * 2.0**-6)
    assert found["held"][0] == found["held"][1]


def test_an_overflow_drops_a_micro_batch_of_all_replicas(mirrored: dict[str, Any]) -> None:
    found = mirrored["dropped"]
    assert found["reasons"] == ["accumulating", "inf", None]
    # The bias of the last layer has one gradient for each output; those of the first may be NaN.
    assert found["overflows"][1].keys() == {
        "dense.kernel",
        "dense.bias",
        "dense_1.kernel",
        "dense_1.bias",
    }
    model, optimizer = dense(), keras.optimizers.SGD(0.1)
    by_hand(model, optimizer, [np.concatenate(joint(2, [1, 3]))], mean_loss)
    assert_alike(found["held"], values(model, optimizer), within=1e-6)


def test_a_schedule_changes_all_replicas(mirrored: dict[str, Any]) -> None:
    found = mirrored["scheduled"]
    assert found["held"][0] == found["held"][1]
    assert found["rounded"] is True


def test_what_cannot_work_is_refused(mirrored: dict[str, Any]) -> None:
    refused = mirrored["refusals"]
    expected = {
        "on a replica": "CallOrderError: A train_step was called by a replica",
        "the same for all": "ArgumentError: Each of 2 replicas would train on the same batch",
        "optimizer outside": "CallOrderError: 'iteration' was not made in the scope of the Mirrored",
        "model outside": "CallOrderError: 'kernel' was not made in the scope of the Mirrored",
        "no replica at all": "CallOrderError: 'kernel' was not made in the scope of the Mirrored",
        "on no replica": "CallOrderError: Model and optimizer were made in the scope of a Mirrored",
        "another strategy": "UnsupportedError: Training in mixed precision under OneDeviceStrategy",
    }
    assert refused.keys() == expected.keys()
    for name, beginning in expected.items():
        assert refused[name].startswith(beginning)
        assert "\nHint: " in refused[name]


# -- the example: MirroredStrategy, and several workers


def lines_of_example(printed: str) -> list[str]:
    return re.findall(r"[.s]+ scale=\S+ weights=\w+", printed)


def test_the_example_on_one_machine() -> None:
    first, second = lines_of_example(run(EXAMPLE, "--policy", "O1", "--own-loop"))
    assert first == second
    # 1024, halved after each skip, doubled after three finite steps.
    assert first.startswith(".s...s...s.. scale=512 ")


def test_an_overflow_on_one_of_two_workers(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    first, second = on_workers(2, EXAMPLE, "--policy", "O0", "--save", str(saved))
    assert lines_of_example(first) == lines_of_example(second)
    assert lines_of_example(first)[0].startswith(".s...s...s.. scale=512 ")
    tensors = checkpoint.read(saved).tensors
    for name, expected in example_by_hand(2).items():
        np.testing.assert_allclose(tensors[f"weights/{name}"], expected, rtol=0, atol=1e-5)


def example_by_hand(workers: int) -> dict[str, np.ndarray]:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((16,)), keras.layers.Dense(32, "gelu"), keras.layers.Dense(4)]
    )
    generators = [np.random.default_rng(worker) for worker in range(workers)]
    batches = []
    for number in range(12):
        x = [g.standard_normal((8, 16)).astype(np.float32) for g in generators]
        y = [g.integers(0, 4, 8) for g in generators]
        if number % 4 != 1:
            batches.append((np.concatenate(x), np.concatenate(y)))

    def loss(model: Any, batch: Batch) -> Any:
        x, y = batch
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x)))

    by_hand(model, keras.optimizers.AdamW(0.01), batches, loss)
    names = ["dense.kernel", "dense.bias", "dense_1.kernel", "dense_1.bias"]
    return dict(zip(names, values(model), strict=True))


@pytest.mark.nightly  # two of them and low precision have tests of their own
def test_three_workers_in_low_precision() -> None:
    printed = on_workers(3, EXAMPLE, "--policy", "O2", "--own-loop")
    lines = [line for each in printed for line in lines_of_example(each)]
    assert len(lines) == 3
    assert lines[0].startswith(".s...s...s.. scale=512 ")
    assert len(set(lines)) == 1


ENDING = """
import os
import sys
import time
from pathlib import Path
import keras
import tensorflow as tf
import ampbridge as amp

how, other_has_stepped = sys.argv[1], Path(sys.argv[2])
options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=25.0)  # on a busy machine
strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
rank = strategy.cluster_resolver.task_id
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
    step = amp.train_step(
        lambda m, x: tf.reduce_mean(m(x) ** 2), model, keras.optimizers.SGD(0.1), policy="O1:bfloat16"
    )


def fail():
    raise OSError("no space left")


def written_together():
    try:
        amp.backend("tensorflow").on_one_rank(model, fail)
    except (OSError, amp.StateError) as error:
        print(type(error).__name__, error, flush=True)


for number in range(5):
    if number == 2 and rank == 1:
        while not other_has_stepped.exists():  # else the other's step 1 may be what fails
            time.sleep(0.1)
        os._exit(7) if how == "dies" else time.sleep(600)
    step(tf.ones((2, 4))).applied
    print("step", number, flush=True)
    if number == 0:
        written_together()
    if number == 1 and rank == 0:
        other_has_stepped.touch()
"""


def test_a_worker_that_dies_or_stands_still_is_an_error_on_the_other_one(tmp_path: Path) -> None:
    script = tmp_path / "ending.py"
    script.write_text(ENDING)
    # TensorFlow's own threads may abort the process while it prints what was raised.
    messages = {
        "dies": "Connection reset by peer|Socket closed|Connection refused|Broken pipe|Mutex corrupt",
        "stands still": "Collective has timed out|Mutex corrupt",
    }
    started = {end: start_workers(2, script, end, str(tmp_path / end)) for end in messages}
    try:
        said = {end: ranks[0].communicate() for end, ranks in started.items()}
    finally:
        for ranks in started.values():
            for rank in ranks:
                rank.kill()
        others = {end: ranks[1].communicate()[0] for end, ranks in started.items()}
    for end, message in messages.items():
        printed, errors = said[end]
        assert started[end][0].returncode not in (0, -9)
        assert printed.split("\n")[:3] == ["step 0", "OSError no space left", "step 1"]
        assert "step 2" not in printed
        assert re.search(message, errors), errors
        refused = "StateError The rank that acts for all could not. OSError: no space left"
        assert others[end].split("\n")[:3] == ["step 0", refused, "step 1"]
