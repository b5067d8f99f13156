"""``lens.monitor`` on NumPy: what it writes where, and when. Frameworks: tests/*/test_lens.py."""

import csv
from collections import Counter

import autograd.numpy as anp
import numpy as np
import pytest
from monitored import assert_monitored_alike

import ampbridge as amp
from ampbridge import lens
from ampbridge.errors import AmpBridgeError, StateError
from ampbridge_numpy import nn, optim

X = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)


class Net(nn.Module):
    def __init__(self):
        self.first, self.second = nn.Linear(6, 6, rng=0), nn.Linear(6, 6, rng=1)

    def forward(self, x):
        return self.second(self.first(x))


def loss_fn(model, x, factor=1.0):
    return anp.mean(model(x) ** 2) * np.float32(factor)


def made_step(**options):
    model = Net()
    scaler = amp.GradScaler(init_scale=2.0**10)
    return amp.train_step(
        loss_fn, model, optim.SGD(model.parameters(), 0.1), scaler=scaler, policy="O1", **options
    )


@pytest.mark.parametrize("policy", ["O0", "O1", "O2", "O1:bfloat16"])
def test_training_is_the_same_and_looks_are_ranges(policy):
    assert_monitored_alike("numpy", policy)


def test_rows_are_merged_by_layer():
    monitor = lens.monitor(made_step(), every=1)
    monitor(X)
    found = Counter((row.layer, row.kind) for row in monitor.rows)
    assert set(found.values()) == {1}
    assert {layer for layer, kind in found if kind == "parameter"} == {"first", "second"}
    (row,) = [r for r in monitor.rows if (r.layer, r.kind) == ("second", "parameter")]
    values = lens.Exponents.merged(
        r.values for r in monitor.ranges.rows if r.name in ("second.weight", "second.bias")
    )
    assert (row.largest, row.headroom, row.flushed) == (
        values.largest, values.headroom, values.flushed,
    )  # fmt: skip
    assert row.scale == 2.0**10


class Scalars:
    """As TensorBoard's writer."""

    def __init__(self):
        self.seen = []

    def add_scalar(self, tag, value, step):
        self.seen.append((tag, value, step))


def test_files_writers_and_functions_get_the_same(tmp_path):
    path, writer, called = tmp_path / "ranges.csv", Scalars(), []
    monitor = lens.monitor(
        made_step(), path, writer, lambda numbers, step: called.append((numbers, step)), every=3
    )
    for _ in range(5):
        monitor(X)
    with path.open() as file:
        lines = list(csv.DictReader(file))
    assert [[line[name] for name in ("step", "layer", "kind", "headroom")] for line in lines] == [
        [str(row.step), row.layer, row.kind, str(row.headroom)] for row in monitor.rows
    ]
    assert [step for _, step in called] == [1, 4]
    assert writer.seen == [(tag, v, step) for numbers, step in called for tag, v in numbers.items()]
    numbers = called[-1][0]
    (row,) = [r for r in monitor.rows if (r.step, r.layer, r.kind) == (4, "first", "gradient")]
    assert numbers["ranges/first/gradient/largest"] == row.largest
    assert (numbers["ranges/scale"], numbers["ranges/skipped"]) == (2.0**10, 0)
    assert "ranges/model/output/headroom" in numbers


def test_a_look_is_at_the_first_micro_batch_of_a_step():
    monitor = lens.monitor(made_step(accumulate=2), every=2)
    for _ in range(8):
        monitor(X)
    assert sorted({row.step for row in monitor.rows}) == [1, 3]
    assert set(Counter((row.step, row.layer, row.kind) for row in monitor.rows).values()) == {1}
    assert monitor.step.state_dict()["step"] == 4


def test_named_inputs_and_skips_in_between():
    monitor = lens.monitor(made_step(), every=3)
    for factor in (1.0, np.inf, 1.0, 1.0):
        monitor(X, factor=factor)
    assert [(step, skipped) for step, skipped in sorted({(r.step, r.skipped) for r in monitor.rows})] == [
        (1, 0), (4, 1),
    ]  # fmt: skip


def test_scales_that_are_no_power_of_two_count_as_the_next_lower():
    model = Net()
    scaler = amp.GradScaler(init_scale=1000.0)
    step = amp.train_step(loss_fn, model, optim.SGD(model.parameters(), 0.1), scaler=scaler)
    monitor = lens.monitor(step)
    monitor(X)
    assert {row.scale for row in monitor.rows} == {512.0}


@pytest.mark.parametrize(
    ("targets", "options", "message"),
    [
        ((), {"every": 0}, "every=0"),
        ((), {"every": True}, "every=True"),
        ((), {"prefix": 3}, "prefix is a string"),
        ((7,), {}, "7 is none of these"),
        ((Scalars,), {}, "none of these"),
    ],
)
def test_arguments_are_checked(targets, options, message):
    with pytest.raises(AmpBridgeError, match=message) as raised:
        lens.monitor(made_step(), *targets, **options)
    assert str(raised.value).splitlines()[-1].startswith("Hint: ")


def test_it_monitors_steps_alone(tmp_path):
    with pytest.raises(AmpBridgeError, match="looks at steps by amp"):
        lens.monitor(lambda x: x)
    other = tmp_path / "other.csv"
    other.write_text("step,loss\n")
    with pytest.raises(StateError, match="not a log of steps"):
        lens.monitor(made_step(), other)
