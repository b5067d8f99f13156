"""``lens.align`` and ``lens.record`` in one process, on NumPy: what is compared, and how."""

import autograd.numpy as anp
import numpy as np
import pytest
from autograd.extend import defvjp, primitive

from ampbridge import lens
from ampbridge.errors import AmpBridgeError, StateError, WriteError
from ampbridge_lens.closeness import AS_IT_IS, apart, arrangement_of, is_reordered
from ampbridge_numpy import functional, nn

X = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)


def loss_fn(model, x):
    return anp.mean(model(x) ** 2)


class Net(nn.Module):
    """Two linear layers with an activation of the test's between them."""

    def __init__(self, seed=0, between=functional.gelu):
        self.first, self.second = nn.Linear(6, 6, rng=seed), nn.Linear(6, 6, rng=seed + 1)
        self.between = between

    def forward(self, x):
        return self.second(self.between(self.first(x)))


def weights_of(model):
    return {name: np.array(getattr(getattr(model, layer), attribute))
            for name in ("first.weight", "second.bias")
            for layer, attribute in [name.split(".")]}  # fmt: skip


def exp(x):
    return anp.exp(x)  # by this name, as an observation stands in its place


# -- two policies


def test_the_same_twice_agrees():
    model = Net()
    found = lens.align((loss_fn, model), (loss_fn, model), X)
    assert not found
    assert (found.largest, found.unpaired, found.unpaired_weights) == (0.0, (), ())


@pytest.mark.parametrize("policies", [("O1", "O0"), ("O1", "O2"), ("O1:bfloat16", "O0")])
def test_two_policies_agree_up_to_the_rounding_of_the_lower(policies):
    model = Net()
    found = lens.align(*((loss_fn, model, policy) for policy in policies), X)
    assert not found
    assert found.largest < 4
    if "O0" in policies:
        assert found.largest > 0
        assert {each.b.dtype for each in found.dtypes} == {"float32"}


def test_an_overflow_is_what_a_policy_changes():
    """65504 is float16's largest number; only the pass under the policy has the infinity."""
    model = Net(between=lambda x: anp.multiply(x, np.float32(1e5)))
    found = lens.align((loss_fn, model, "O0"), (loss_fn, model, "O2"), X).forward
    assert (found.a.op, found.in_float32, found.error) == ("multiply", False, np.inf)


# -- what differs


def test_the_same_values_in_another_order():
    model = Net(between=lambda x: anp.exp(x[::-1]))
    found = lens.align((loss_fn, Net(between=exp)), (loss_fn, model), X).forward
    assert (found.a.op, found.how) == ("exp", "the same values in another order")


def test_axes_that_are_turned_and_turned_back_are_no_difference():
    there_and_back = Net(between=lambda x: anp.transpose(anp.exp(anp.transpose(x))))
    found = lens.align((loss_fn, Net(between=exp)), (loss_fn, there_and_back), X[:, :])
    assert not found
    assert found.turned == ("exp, the model itself (equal after transposing axes 0 and 1)",)


def test_axes_that_stay_turned_are_where_it_begins():
    square = np.concatenate([X, X[:1]])
    turned = Net(between=lambda x: anp.exp(anp.transpose(x)))
    found = lens.align((loss_fn, Net(between=exp)), (loss_fn, turned), square).forward
    assert (found.a.op, found.how) == ("exp", "equal after transposing axes 0 and 1")
    assert found.cause == "Input 0 is equal after transposing axes 0 and 1."
    assert found.in_float32


def planted(factor):
    """The exponential, with a derivative that is wrong by ``factor``."""

    @primitive
    def planted_exp(x):
        return np.exp(x)

    defvjp(planted_exp, lambda answer, x: lambda g: g * answer * np.float32(factor))
    return planted_exp


def test_a_wrong_derivative():
    """The op has none of the reports, and what arrives at the one before it is wrong."""
    sides = [(loss_fn, Net(between=planted(factor)), "O0") for factor in (1, 1.01)]
    found = lens.align(*sides, X)
    assert found.forward is None
    assert (found.backward.a.op, found.backward.a.layer) == ("linear", "first")
    assert found.backward.what == "gradient of an output"
    assert found.backward.error == pytest.approx(0.01, rel=0.02)


def test_a_loss_that_no_op_makes():
    """Operators between plain arrays are out of reach; the loss is compared all the same."""
    found = lens.align((loss_fn, Net(), "O0"), (lambda m, x: loss_fn(m, x) * 1.001, Net(), "O0"), X)
    assert found.forward.what in ("loss", "output")
    assert found.forward.error == pytest.approx(1e-3, rel=1e-2)


def test_ops_without_a_partner_are_named():
    longer = Net(between=lambda x: anp.tanh(functional.gelu(x)))
    found = lens.align((loss_fn, Net()), (loss_fn, longer), X)
    assert found.unpaired == ("b: tanh, the model itself",)
    assert (found.forward.a.layer, found.forward.between) == ("second", found.unpaired)
    assert "Ops without a partner, not compared: b: tanh, the model itself." in str(found)


def test_noise_of_an_op_that_cancels_is_expected():
    """(x + 1e4) - 1e4 loses 13 of 24 bits, and others where 1e4 is added in two parts."""

    def adding(*parts):
        def between(x):
            for part in parts:
                x = anp.add(x, np.float32(part))
            return anp.subtract(x, np.float32(1e4))

        return loss_fn, Net(between=between)

    a, b = (
        lens.record(*adding(1e4), X, policy="O0"),
        lens.record(*adding(3e3, 7e3), X, policy="O0"),
    )
    found = lens.align(a, b)
    assert not found
    assert found.unpaired == ("b: add, the model itself",)
    first, second = (each.ops[-3].outputs[0].full for each in (a, b))
    assert apart(first, second) > 16 * 4 * 2.0**-23  # what it would be allowed without the noise


def test_noise_of_an_op_that_magnifies_is_expected():
    """The sine of 1000 x, where 1000 x is rounded once or twice: an error of a thousand epsilons."""

    def multiplying(*factors):
        def between(x):
            for factor in factors:
                x = anp.multiply(x, np.float32(factor))
            return anp.sin(x)

        return lens.record(loss_fn, Net(between=between), X, policy="O0")

    a, b = multiplying(1000), multiplying(30, 1000 / 30)
    assert not lens.align(a, b)
    first, second = (
        next(op for op in side.ops if op.op == "sin").outputs[0].full for side in (a, b)
    )
    assert apart(first, second) > 16 * 4 * 2.0**-23  # what it would be allowed without the noise


# -- weights


def test_weights_are_lent_kept_or_their_own():
    a, b = Net(0), Net(7)
    own = weights_of(b)
    assert not lens.align((loss_fn, a), (loss_fn, b), X)
    assert all(np.array_equal(own[name], each) for name, each in weights_of(b).items())
    found = lens.align((loss_fn, a), (loss_fn, b), X, weights="own")
    assert [each.a for each in found.weights] == [
        "first.weight", "first.bias", "second.weight", "second.bias",
    ]  # fmt: skip
    assert found.forward.a.layer == "first"
    assert found.forward.cause == "Its weights differ: first.weight, first.bias."
    assert not lens.align((loss_fn, a), (loss_fn, b), X, weights="kept")
    assert all(np.array_equal(weights_of(a)[name], each) for name, each in weights_of(b).items())


def test_a_transposed_weight_is_named():
    a, b = Net(), Net()
    b.first.weight = nn.Parameter(np.ascontiguousarray(np.transpose(a.first.weight)))
    found = lens.align((loss_fn, a), (loss_fn, b), X, weights="own")
    assert [(each.a, each.how) for each in found.weights] == [
        ("first.weight", "equal after transposing axes 0 and 1")
    ]


def test_weights_that_do_not_pair():
    class Longer(Net):
        def __init__(self):
            super().__init__()
            self.third = nn.Linear(6, 3, rng=0)

    with pytest.raises(StateError, match=r"third\.weight"):
        lens.align((loss_fn, Net()), (loss_fn, Longer()), X)
    found = lens.align((loss_fn, Net()), (loss_fn, Longer()), X, weights="own")
    assert found.unpaired_weights == ("b: third.weight", "b: third.bias")


# -- recordings


def test_a_recording_says_the_same_from_a_file(tmp_path):
    a, b = Net(), Net(between=exp)
    live = lens.align((loss_fn, a), (loss_fn, b), X)
    path = tmp_path / "a.npz"
    lens.record(loss_fn, a, X).save(path)
    loaded = lens.Recording.load(path)
    assert lens.align(loaded, (loss_fn, b), X) == live
    recorded = lens.record(loss_fn, b, X, weights=loaded)
    assert lens.align(loaded, recorded) == live
    assert loaded.to_dict() == lens.record(loss_fn, a, X).to_dict()
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_gradients_are_without_the_loss_scale():
    found = [lens.record(loss_fn, Net(), X, policy="O1", scale=scale) for scale in (None, 2.0**3)]
    assert found[0].scale != found[1].scale == 8
    for name, values in found[0].gradients.items():
        assert apart(values.low, found[1].gradients[name].low) < 2e-3


def test_files_that_are_no_recordings(tmp_path):
    path = tmp_path / "other.npz"
    for content in (b"", b"PK\x03\x04", b"{}"):
        path.write_bytes(content)
        with pytest.raises(StateError, match="is not a recording"):
            lens.Recording.load(path)
    np.savez(path, x=X)
    with pytest.raises(StateError, match="is not a recording"):
        lens.Recording.load(path)
    with pytest.raises(StateError, match="is not a recording"):
        lens.Recording.load(tmp_path / "missing.npz")
    with pytest.raises(WriteError, match="cannot be written"):
        lens.record(loss_fn, Net(), X).save(tmp_path / "missing" / "a.npz")


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((Net(), (loss_fn, Net()), X), {}, r"a is a recording or \(loss_fn, model, policy\)"),
        (((loss_fn, Net()), (loss_fn,), X), {}, "b is a recording"),
        (((loss_fn, Net()), (loss_fn, Net()), X), {"weights": "other"}, "weights='other'"),
        (((loss_fn, Net()), (loss_fn, Net()), X), {"tolerance": 0}, "tolerance=0"),
        (((loss_fn, Net()), (loss_fn, Net(), "O3"), X), {}, "O3"),
    ],
)
def test_arguments_are_checked(arguments, options, message):
    with pytest.raises(AmpBridgeError, match=message) as raised:
        lens.align(*arguments, **options)
    assert str(raised.value).splitlines()[-1].startswith("Hint: ")


def test_two_recordings_take_no_batch():
    recording = lens.record(loss_fn, Net(), X)
    with pytest.raises(AmpBridgeError, match="two recordings and 1 inputs"):
        lens.align(recording, recording, X)


# -- arrays


@pytest.mark.parametrize("axes", [(1, 0, 2), (0, 2, 1), (2, 0, 1), (2, 1, 0)])
def test_arrangements_are_those_of_numpy(axes):
    a = np.random.default_rng(0).normal(size=(3, 3, 3))
    found = arrangement_of(a, np.transpose(a, axes), 1e-6)
    assert found.axes == axes
    assert is_reordered(a, np.transpose(a, axes), 1e-6)


def test_merged_axes_are_those_of_a_reshape():
    a = np.random.default_rng(0).normal(size=(4, 3, 2))
    assert arrangement_of(a, a.reshape(12, 2), 0) == AS_IT_IS
    merged = np.transpose(a, (1, 0, 2)).reshape(12, 2)
    assert arrangement_of(a, merged, 0).axes == (1, 0, 2)
    assert arrangement_of(merged, a, 0).axes == (1, 0, 2)
    assert arrangement_of(a, merged[:6], 0) is None


def test_infinities_and_nan_are_equal_to_themselves_alone():
    a = np.array([1.0, np.inf, -np.inf, np.nan], np.float32)
    assert apart(a, a) == 0
    for place, value in ((1, -np.inf), (1, 1.0), (3, 0.0), (0, np.nan)):
        other = a.copy()
        other[place] = value
        assert apart(a, other) == np.inf


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_a_cast_that_makes_inf_is_the_cause(policy):
    def mean(model, x):
        return anp.mean(model(x))

    model = nn.Linear(4, 1, rng=0)
    model.weight[...] *= np.float32(1e-6)
    found = lens.align((mean, model, "O0"), (mean, model, policy), np.full((2, 4), 1e5, np.float32))
    assert found.forward.cause == (
        "A cast to float16 makes inf of an input on side b, for linear, the model itself; its largest "
        "value was 1e+05."
    )


@pytest.mark.parametrize(
    "kind, is_fit",
    [
        ("counts", lambda v: (v == np.rint(v)).all()),
        ("probabilities", lambda v: ((v >= 0) & (v <= np.float32(0.9999))).all()),
        ("shares", lambda v: np.allclose(v.sum(1), 1, rtol=0, atol=1e-6)),
    ],
)
def test_inputs_stay_what_a_loss_demands_of_them(kind, is_fit):
    """Counts, probabilities that end below 1, shares of 1: recorded, with the noise of all else."""
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.ones(4), 8).astype(np.float32)
    inputs = {
        "counts": rng.poisson(3, (8, 4)).astype(np.float32),
        "probabilities": rng.choice([0, 0.3, 0.9999], (8, 4)).astype(np.float32),
        "shares": shares / shares.sum(1, keepdims=True),
    }

    def checked(model, x, y):
        if not is_fit(y):
            raise ValueError(f"no {kind}")
        return anp.mean((model(x) - y) ** 2)

    recording = lens.record(
        checked, nn.Linear(4, 4, rng=0), rng.normal(size=(8, 4)).astype("f"), inputs[kind]
    )
    assert recording.loss.low_noise > 0
    assert not recording.raised
