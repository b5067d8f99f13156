"""``lens.parity`` on NumPy: its numbers are those of scipy in float64, and it names planted differences."""

import sys
from dataclasses import replace

import autograd.numpy as anp
import numpy as np
import pytest
from scipy.special import log_softmax, rel_entr, softmax

import ampbridge as amp
from ampbridge import lens
from ampbridge_numpy import nn

X = np.random.default_rng(0).normal(size=(40, 3, 6)).astype(np.float32)


class Net(nn.Module):
    def __init__(self, seed=0):
        self.first, self.second = nn.Linear(6, 16, rng=seed), nn.Linear(16, 16, rng=seed + 1)
        self.head = nn.Linear(16, 9, rng=seed + 2)

    def forward(self, x):
        return self.head(nn.gelu(self.second(nn.gelu(self.first(x)))))


def forward(model, x):
    return model(x)


def parts(found):
    return {each.layer: each.part for each in found.layers}


# -- numbers


def test_the_numbers_are_those_of_scipy():
    rng = np.random.default_rng(1)
    a = rng.normal(size=(4, 7, 11)).astype(np.float32)
    b = (a + 0.1 * rng.normal(size=a.shape)).astype(np.float32)
    a[..., 3] = b[..., 3] = -np.inf  # a class that both mask
    labels = rng.choice([0, 1, 2, 5, 10, -100], (4, 7))
    report = lens.parity(a, b, labels=labels)
    assert report.remarks == ()
    found = report.logits
    counts = labels != -100
    x, y = (log_softmax(each.astype(np.float64), -1)[counts] for each in (a, b))
    rows = np.arange(len(x))
    ratio = x[rows, labels[counts]] - y[rows, labels[counts]]
    assert found.rows == counts.sum() < 28
    assert found.log_ratio[:3] == pytest.approx(
        [ratio.mean(), abs(ratio).mean(), np.percentile(abs(ratio), 95)], rel=1e-12
    )
    worst = abs(ratio).argmax()
    assert found.log_ratio.largest == pytest.approx(ratio[worst], rel=1e-12)
    assert found.log_ratio.at == tuple(np.argwhere(counts)[worst])
    kl = rel_entr(softmax(a.astype(np.float64), -1), softmax(b.astype(np.float64), -1)).sum(-1)[
        counts
    ]
    assert found.kl.mean == pytest.approx(kl.mean(), rel=1e-9)
    assert found.kl.largest == pytest.approx(kl.max(), rel=1e-9)
    assert found.importance == pytest.approx(abs(np.exp(ratio) - 1).max(), rel=1e-12)
    assert found.top == (x.argmax(-1) == y.argmax(-1)).mean() < 1


def test_many_classes_are_compared_in_blocks(monkeypatch):
    a, b = np.random.default_rng(2).normal(size=(2, 30, 8))
    whole = lens.parity(a, b)
    monkeypatch.setattr(sys.modules["ampbridge_lens.parity"], "BLOCK", 50)
    assert lens.parity(a, b) == whole


def test_the_same_twice_is_equal_to_the_bit():
    model = Net()
    found = lens.parity((forward, model, "O0"), (forward, model, "O0"), X)
    assert not found
    assert (found.logits.log_ratio[:4], found.logits.kl[:4]) == ((0.0,) * 4, (0.0,) * 4)
    assert (found.logits.top, found.layers) == (1.0, ())
    assert str(found).splitlines()[2] == "The outputs are equal to the bit."


def test_outputs_that_are_no_logits_have_relative_errors():
    model = Net()

    def pair(model, x):
        hidden = anp.multiply(model.first(x), np.float32(1e3))
        return {"hidden": hidden, "rest": (model.head(nn.gelu(hidden)), 1)}

    found = lens.parity((pair, model, "O0"), (pair, model, "O2:bfloat16"), X)
    float32 = pair(model, X)
    assert found.logits is None
    assert [each.name for each in found.errors] == ["hidden", "rest.0"]
    with amp.autocast("O2:bfloat16", "numpy"):
        low = pair(amp.decorate(Net(), policy="O2:bfloat16"), X)
    for error, a, b in zip(
        found.errors,
        (float32["hidden"], float32["rest"][0]),
        (low["hidden"], low["rest"][0]),
        strict=True,
    ):
        a, b = a.astype(np.float64), b.astype(np.float64)
        assert error.relative == pytest.approx(np.linalg.norm(a - b) / np.linalg.norm(b), rel=1e-6)
        assert error.largest == pytest.approx(abs(a - b).max())
    assert sum(parts(found).values()) == pytest.approx(1, abs=0.05)
    assert parts(found)["head"] > 0.1  # though its values are a thousandth of the others
    assert "compares probabilities if forward returns logits" in str(found)


# -- layers


def test_the_parts_of_the_layers_add_up_and_a_kept_one_has_the_least():
    """What float32 in a layer does to the squared difference is measured by a pass with it."""
    model, every = Net(), []
    for policy in (amp.Policy("O2", "bfloat16"), amp.Policy("O2", "bfloat16", keep=["head"])):
        found = lens.parity((forward, model, "O0"), (forward, model, policy), X)
        assert sum(parts(found).values()) == pytest.approx(1, abs=0.05)
        every.append(found)
    whole, kept = every
    assert parts(whole)["head"] > 0.1
    assert abs(parts(kept)["head"]) < 0.01
    assert kept.logits.log_ratio.magnitude < whole.logits.log_ratio.magnitude


@pytest.mark.parametrize("layer", ["first", "second", "head"])
@pytest.mark.parametrize("policy", ["O0", "O1"])
def test_a_scaled_weight_is_the_layer_that_differs(layer, policy):
    a, b = Net(), Net()
    getattr(b, layer).weight[...] *= np.float32(1.01)
    found = lens.parity((forward, a, "O0"), (forward, b, policy), X, weights="own")
    assert found.layers[0].layer == layer
    assert found.layers[0].part == pytest.approx(1, abs=0.1)
    assert not lens.parity((forward, a, "O0"), (forward, b, "O0"), X)  # with the weights of a


def test_a_difference_that_no_probability_has_is_of_no_layer():
    a, b = Net(), Net()
    for model, sure in ((a, 1000), (b, 1001)):
        model.head.bias[0] = sure  # and exp(-900) is zero
    found = lens.parity((forward, a, "O0"), (forward, b, "O0"), X, weights="own")
    assert found
    assert (found.logits.log_ratio.largest, found.logits.kl.largest, found.layers) == (0, 0, ())


def test_frozen_models_are_compared_without_layers():
    class Frozen(nn.Module):
        def __init__(self):
            self.weight = X[0].T

        def forward(self, x):
            return anp.matmul(x, self.weight)

    found = lens.parity((forward, Frozen(), "O0"), (forward, Frozen(), "O1"), X)
    assert found.logits.log_ratio.magnitude > 0
    assert found.layers == ()
    assert "The layers are not known: " in found.remarks[-1]


def test_ops_without_a_partner_are_named():
    def scaled(model, x):
        return anp.multiply(model(x), np.float32(1.01))

    model = Net()
    found = lens.parity((forward, model, "O0"), (scaled, model, "O0"), X)
    assert "Ops without a partner, not compared: b: multiply, the model itself." in found.remarks


# -- what is said


def test_nan_inf_and_constants_are_named():
    a = np.random.default_rng(3).normal(size=(5, 4)).astype(np.float32)
    b = a.copy()
    b[2, 1], b[4, 0] = np.nan, np.inf
    found = lens.parity(a, b)
    assert found.logits.rows == 3
    assert "b: output is inf or NaN in 2 of 20 values, the first at (2, 1)." in found.remarks
    assert found.errors[0].relative == np.inf
    constant = lens.parity(a, np.ones_like(a))
    assert "b: output is constant: all 5 rows are the same." in constant.remarks


def test_the_report_is_one_screen():
    class Deep(nn.Module):
        def __init__(self):
            self.layers = [nn.Linear(6, 6, rng=i) for i in range(30)]

        def forward(self, x):
            for layer in self.layers:
                x = x + nn.gelu(layer(x))
            return x

    model = Deep()
    found = lens.parity((forward, model, "O0"), (forward, model, "O2:bfloat16"), X)
    lines = str(found).splitlines()
    assert lines[:2] == ["a: numpy, Policy('O0')", "b: numpy, Policy('O2', 'bfloat16')"]
    assert lines[2].startswith("log p differs by ")
    assert len(lines) < 30
    assert sum(line.startswith("part ") for line in lines) == 10
    assert "All 31, of which 10 are shown, explain" in " ".join(str(found).split())
    nothing = replace(found, layers=(lens.LayerPart("last", -1e-9, ("add",)),))
    assert "part 0.0%" in str(nothing)
    assert "-0%" not in str(nothing)
    assert found.to_dict()["logits"]["log_ratio"]["at"] == list(found.logits.log_ratio.at)


@pytest.mark.parametrize(
    ("sides", "options", "message"),
    [
        ((Net(), (forward, Net()), X), {}, "a gives no floating-point array"),
        (((forward, Net()), (lambda m, x: 1, Net()), X), {}, "or an empty one: 1"),
        ((X[:0], X[:0]), {}, "or an empty one"),
        ((*[(lambda m, x, y: m(x), Net())] * 2, (X, X)), {}, r"parity\(a, b, \*batch\)"),
        ((X, X, X), {}, "A side with a model is"),
        ((X, (forward, Net()), X), {"weights": "own"}, "A side with a model is"),
        ((X, X), {"labels": [0]}, "The labels are of dtype int64 and shape"),
        ((X, X), {"labels": np.full((40, 3), 6)}, "The label 6 is no class"),
        ((X[0, 0], X[0, 0]), {"labels": [0]}, "outputs that are no logits"),
        ((softmax(X, -1), softmax(X, -1)), {"labels": [0]}, "outputs of a and b are no logits"),
        ((X, softmax(X, -1)), {}, "outputs of b are no logits: they are probabilities"),
        ((X, {"x": X[:2]}), {}, r"a have the shapes \(40, 3, 6\), those of b \{'x': \(2, 3, 6\)\}"),
        (((forward, Net()), (forward, Net()), X), {"weights": "other"}, "weights='other'"),
    ],
)  # fmt: skip
def test_arguments_are_checked(sides, options, message):
    with pytest.raises(amp.AmpBridgeError, match=message) as raised:
        lens.parity(*sides, **options)
    assert str(raised.value).splitlines()[-1].startswith("Hint: ")
