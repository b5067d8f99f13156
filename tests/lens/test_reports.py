"""Census, ranges and locate on NumPy: what they say of small models, in words and in numbers."""

import json
import sys

import autograd.numpy as anp
import numpy as np
import pytest
from autograd.extend import defvjp, primitive

import ampbridge as amp
from ampbridge import lens
from ampbridge_numpy import nn, optim


class Net(nn.Module):
    def __init__(self):
        self.first = nn.Linear(4, 8, rng=0)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3, rng=1)

    def forward(self, x):
        return self.head(nn.gelu(self.norm(self.first(x))))


X = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(16, 3)).astype(np.float32)


def loss_fn(model, x, y):
    return nn.mse_loss(model(x), y)


def rows(policy):
    found = lens.census(loss_fn, Net(), X, Y, policy=policy).rows
    return {(row.op, row.layer): (row.dtype, row.rule) for row in found}


# -- census


def test_the_census_tells_each_rule():
    assert rows("O1") == {
        ("linear", "first"): ("float16", "O1 allow"),
        ("layer_norm", "norm"): ("float32", "O1 deny"),
        ("gelu", ""): ("float32", "promote"),
        ("linear", "head"): ("float16", "O1 allow"),
        ("mse_loss", ""): ("float32", "O1 deny"),
    }
    assert set(rows("O0").values()) == {("float32", "float32")}


def test_the_census_tells_what_was_the_user_s():
    found = rows(amp.Policy("O1", "bfloat16", allow=["layer_norm"], deny=["gelu"], keep=["head"]))
    assert found["layer_norm", "norm"] == ("bfloat16", "your allow")
    assert found["gelu", ""] == ("float32", "your deny")
    assert found["linear", "head"] == ("float32", "kept layer")


def test_the_census_counts_calls_and_times_them():
    def twice(model, x, y):
        return loss_fn(model, x, y) + loss_fn(model, x, y)

    found = lens.census(twice, Net(), X, Y)
    assert found.dtypes("linear") == {"float16": 4}
    assert {row.calls for row in found.rows if row.layer} == {2}
    assert sum(row.share for row in found.rows) == pytest.approx(1.0)


def test_the_census_prints_and_is_plain_data():
    found = lens.census(loss_fn, Net(), X, Y)
    assert str(found).splitlines()[0] == (
        "Policy('O1', 'float16') on numpy (native): 3 float32, 2 float16"
    )
    printed = [line.split()[-1] for line in str(found).splitlines() if line.endswith("%")]
    assert printed == [f"{100 * row.share:.1f}%" for row in found.rows]
    data = json.loads(json.dumps(found.to_dict()))
    assert data["rows"][0]["kernels"] == [{"name": "linear", "dtype": "float16", "times": 1}]


class Clock:
    """Stands in for ``time``: between two looks at it the given seconds go by, then none."""

    def __init__(self, *seconds):
        self._steps = [step for each in seconds for step in (0.0, each)]
        self._now = 0.0

    def perf_counter(self):
        self._now += self._steps.pop(0)
        return self._now


def test_shares_are_those_of_the_medians_of_several_passes(monkeypatch):
    """Two ops, three passes: what takes long once is no share of it."""
    clock, passes = Clock(1.0, 3.0, 1.0, 90.0, 9.0, 3.0), []
    monkeypatch.setattr("ampbridge_numpy.lens.observing.time", clock)

    def noted(model, x, y):
        passes.append(len(passes))
        return loss_fn(model, x, y)

    found = lens.census(noted, nn.Linear(4, 3, rng=0), X, Y, passes=3)
    assert {row.op: row.share for row in found.rows} == {"linear": 0.25, "mse_loss": 0.75}
    assert found.passes == len(passes) == 3
    remark = "Times are the forward pass's, as the lens saw it: the median of 3 passes."
    assert str(found).splitlines()[-1] == remark


def test_a_census_of_one_pass_says_so():
    found = lens.census(loss_fn, Net(), X, Y, passes=1)
    assert str(found).splitlines()[-1].endswith("as the lens saw it: one pass.")
    with pytest.raises(
        amp.ArgumentError, match="Passed passes=0; allowed is a whole number from 1"
    ):
        lens.census(loss_fn, Net(), X, Y, passes=0)


def test_without_times_one_pass_is_enough(monkeypatch):
    """As on a device that computes while the caller goes on."""
    calls = sys.modules["ampbridge_lens.census"].Calls
    monkeypatch.setattr(
        calls, "op_ran", lambda self, call, *_: self.seen.append(call._replace(seconds=None))
    )
    found = lens.census(loss_fn, Net(), X, Y)
    assert (found.passes, {row.share for row in found.rows}) == (0, {None})
    assert "Times" not in str(found)


def test_a_scalar_says_nothing_of_an_op_s_dtype():
    def scaled(model, x, y):
        return loss_fn(model, x, y) + anp.sum(anp.multiply(np.float64(0.5), model(x)))

    assert lens.census(scaled, Net(), X, Y, policy="O0").dtypes("multiply") == {"float32": 1}


# -- ranges


def test_ranges_are_those_of_the_float32_pass():
    """Outputs and gradients are computed here in float64; the model is small enough by hand."""
    model = Net()
    found = lens.ranges(loss_fn, model, X, Y, scale=2.0**4)
    (first,) = [r for r in found.rows if (r.kind, r.layer) == ("output", "first")]
    expected = X.astype(np.float64) @ model.first.weight + model.first.bias
    assert first.values.largest == pytest.approx(np.abs(expected).max(), rel=1e-6)
    assert (first.name, first.dtype) == ("linear", "float16")
    prediction = model(X).astype(np.float64)
    of_prediction = 2 * (prediction - Y) / Y.size * 2.0**4
    (head,) = [r for r in found.rows if (r.kind, r.layer) == ("gradient", "head")]
    assert head.values.largest == pytest.approx(np.abs(of_prediction).max(), rel=1e-5)
    (bias,) = [r for r in found.rows if (r.kind, r.name) == ("parameter", "head.bias")]
    assert bias.values.largest == pytest.approx(np.abs(of_prediction.sum(0)).max(), rel=1e-5)


@pytest.mark.parametrize("scale", [1.0, 2.0**-3, 2.0**12])
def test_ranges_at_another_scale_are_the_same_as_measured_there(scale):
    model = Net()
    found = lens.ranges(loss_fn, model, X, Y, scale=scale)
    assert found.at(2.0**8) == lens.ranges(loss_fn, model, X, Y, scale=2.0**8)


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_the_safe_scale_does_not_overflow_and_twice_it_does(policy):
    safe = lens.ranges(loss_fn, Net(), X, Y, policy=policy).safe_scale

    def applied(scale):
        model = Net()
        scaler = amp.GradScaler(scale, max_scale=2.0**127)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        return amp.train_step(loss_fn, model, optimizer, policy=policy, scaler=scaler)(X, Y).applied

    assert applied(safe)
    assert not applied(2 * safe)


def test_a_policy_without_scaling_has_no_safe_scale():
    found = lens.ranges(loss_fn, Net(), X, Y, policy="O1:bfloat16")
    assert found.safe_scale is None
    assert "needs no loss scale" in str(found)


def test_ranges_are_plain_data():
    data = json.loads(json.dumps(lens.ranges(loss_fn, Net(), X, Y).to_dict()))
    assert {row["kind"] for row in data["rows"]} == {"cast", "output", "gradient", "parameter"}


def test_ranges_contain_what_is_cast():
    """A batch whose large values become infinite, beside weights whose products are small."""
    model = nn.Linear(4, 1, rng=0)
    model.weight[...] *= np.float32(1e-6)
    large = np.full((2, 4), 1e5, np.float32)
    found = lens.ranges(lambda m, x: anp.mean(anp.exp(m(x))), model, large)
    rows = {(r.kind, r.name): r for r in found.rows}
    with np.errstate(over="ignore"):
        cast = [*large.astype(np.float16).flat, *model.weight.astype(np.float16).flat, *model.bias]
    row = rows["cast", "linear"]
    assert row.values.largest == 1e5
    assert row.values.overflowing == np.isinf(cast).mean() == 8 / 13
    assert rows["output", "linear"].values.overflowing == 0
    assert found.short().rows[0][:2] == ("cast", "linear")
    assert ("cast", "exp") not in rows  # it runs in float32


# -- locate


def test_nothing_is_found_where_nothing_is_wrong():
    found = lens.locate(loss_fn, Net(), X, Y, scale=2.0**10)
    assert not found
    assert (found.kind, found.patch) == (None, None)
    assert str(found).endswith("Loss and gradients are finite, and none is lost.")


def test_what_float32_has_as_well_is_no_matter_of_policies():
    def divided(model, x, y):
        return anp.sum(model(x) / (x[:, :3] * 0.0))

    with np.errstate(all="ignore"):
        found = lens.locate(divided, Net(), X, Y)
    assert found.in_float32
    assert (found.op, found.patch) == ("divide", None)
    assert "no policy cures it" in found.advice


def test_infinities_that_are_meant_are_not_found():
    """A mask of -inf, as attention has it, ahead of a softmax; the fault lies behind it."""

    def masked(model, x, y):
        mask = np.where(np.arange(3) < 2, 0.0, -np.inf).astype(np.float32)
        weights = nn.softmax(anp.add(model(x), mask))
        return anp.sum(anp.exp(weights * 24.0))

    policy = amp.Policy("O1", "float16", allow=["exp"])
    with np.errstate(all="ignore"):
        found = lens.locate(masked, Net(), X, Y, policy=policy, scale=1.0)
    assert (found.op, found.kind) == ("exp", "overflow")


def test_a_cure_takes_as_few_calls_along_as_it_can():
    """The linear of one of two layers overflows: that layer is kept, not every linear denied."""
    model = Net()
    model.first.weight[...] = 5e4
    found = lens.locate(loss_fn, model, np.abs(X), Y, scale=1.0)
    assert (found.op, found.layer) == ("linear", "first")
    assert found.patch == lens.Patch(keep=("first",))
    assert str(found.patch) == "keep += {'first'}"


class Steep(nn.Module):
    """Its exp overflows float16, and so does the product that is handed the result, if it casts it."""

    def __init__(self):
        self.weight = nn.Parameter(np.eye(4, dtype=np.float32))

    def forward(self, x):
        return 1e-9 * anp.mean(anp.astype(anp.matmul(anp.exp(x), self.weight), np.float32))


class WithSoundProducts(nn.Module):
    """To deny matmul takes more calls along than to keep ``steep``."""

    def __init__(self):
        self.steep = Steep()

    def forward(self, x):
        for _ in range(3):
            x = anp.matmul(x, np.eye(4, dtype=np.float32))
        return self.steep(x)


TWELVE = np.full((1, 4), 12.0, np.float32)  # exp(12) is 162754.8
ALLOWING_EXP = amp.Policy("O1", "float16", allow=["exp"])


@pytest.mark.parametrize(
    "make, layer, patch",
    [
        # The model itself is no layer that can be kept: one op after the other is denied.
        (Steep, "", lens.Patch(deny=("exp", "matmul"))),
        # First exp is denied; then "steep" is kept, within which exp is in float32 anyway.
        (WithSoundProducts, "steep", lens.Patch(keep=("steep",))),
    ],
)
def test_a_cure_of_two_faults_has_what_it_needs_and_no_more(make, layer, patch):
    with np.errstate(over="ignore"):
        found = lens.locate(lambda m, x: m(x), make(), TWELVE, policy=ALLOWING_EXP, scale=1.0)
    assert (found.op, found.layer, found.kind) == ("exp", layer, "overflow")
    assert found.patch == patch


@pytest.mark.parametrize(
    "x, op, kind",
    [
        ([1e-9, 1e-9], "cast", "underflow"),
        ([1.0, 1.0], "divide", "overflow"),
        ([1e-9, 1.0], "divide", "overflow"),
    ],
)
def test_zeros_that_a_cast_makes_are_told_from_an_overflow(x, op, kind):
    """Divided by 1e-9, which float16 flushes to zero; a quotient of 1e9 it does not hold either way."""

    def divided(model, x):
        return anp.mean(x / model.weight)

    model = nn.Linear(2, 1, bias=False, rng=0)
    model.weight[...] = 1e-9
    policy = amp.Policy("O1", "float16", allow=["divide"])
    with np.errstate(all="ignore"):
        found = lens.locate(divided, model, np.array([[v] for v in x], np.float32), policy=policy)
    assert (found.op, found.kind, found.direction) == (op, kind, "forward")


def test_a_patch_moves_an_op_from_allow_to_deny():
    patch = lens.Patch(deny=("exp",), keep=("head",), scale=2.0**9)
    policy = patch.applied_to(amp.Policy("O1", "float16", allow=["exp", "sum"], keep=["norm"]))
    assert policy == amp.Policy("O1", "float16", allow=["sum"], deny=["exp"], keep=["norm", "head"])
    assert str(patch) == "deny += {'exp'}, keep += {'head'}, init_scale = 2^9"


def test_an_op_that_is_not_seen_is_told_by_what_it_hands_on():
    @primitive
    def steep(x):
        return x * x.dtype.type(6e4)

    defvjp(steep, lambda answer, x: lambda g: g * x.dtype.type(6e4))

    def loss(model, x, y):
        return nn.mse_loss(steep(anp.matmul(x, model.first.weight)), np.tile(y, 3)[:, :8])

    model = Net()
    with np.errstate(all="ignore"):
        found = lens.locate(loss, model, X, Y, scale=2.0**-20)
    assert (found.op, found.direction, found.kind) == ("mse_loss", "forward", "overflow")
    assert "from an op not observed" in found.advice


# -- the model is left as it was


@pytest.mark.parametrize("policy", ["O1", "O2", amp.Policy("O1", "float16", keep=["head"])])
def test_weights_and_decoration_are_left_as_they_were(policy):
    model = Net()
    before = [p.copy() for p in model.parameters()]
    lens.census(loss_fn, model, X, Y, policy=policy)
    lens.locate(loss_fn, model, X, Y, policy=policy)
    assert all(np.array_equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert amp.backend(model).decoration(model, None) is None


def test_running_statistics_are_left_as_they_were():
    """Passes move them, as passes do; the lens puts them back."""

    class Normed(nn.Module):
        def __init__(self):
            self.norm = nn.BatchNorm2d(2)

        def forward(self, x):
            return self.norm(anp.reshape(x, (-1, 2, 1, 2)))

    model = Normed()
    before = amp.backend(model).read_weights(model)
    assert {"norm.running_mean", "norm.running_var"} < set(before)
    lens.ranges(lambda model, x: anp.mean(model(x) ** 2), model, X)
    after = amp.backend(model).read_weights(model)
    assert all(np.array_equal(after[name], before[name]) for name in before)


def test_a_model_in_training_is_looked_at_between_its_steps():
    """``train_step`` fits the model below O2 as well; the lens puts that back."""
    model = Net()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    step = amp.train_step(loss_fn, model, optimizer, policy=amp.Policy("O1", keep=["head"]))
    step(X, Y)
    fitted = amp.backend(model).decoration(model, None)
    lens.census(loss_fn, model, X, Y, policy="O1")
    assert amp.backend(model).decoration(model, None) == fitted
    assert step(X, Y).applied


# -- what is refused


def test_a_decorated_model_is_refused():
    model = amp.decorate(Net(), policy="O2")
    with pytest.raises(amp.CallOrderError, match=r"decorated with .*\nHint: amp\.undecorate"):
        lens.census(loss_fn, model, X, Y)


def test_a_model_that_makes_its_weights_when_called_is_to_be_called_before():
    class Lazy(Net):
        def forward(self, x):
            if not hasattr(self, "last"):
                self.last = nn.Linear(3, 3, rng=0)
            return self.last(super().forward(x))

    model = Lazy()
    with pytest.raises(amp.CallOrderError, match=r"last\.weight.*\nHint: model\(x\) once"):
        lens.census(loss_fn, model, X, Y)
    assert not hasattr(model, "last")
    model(X)
    assert lens.census(loss_fn, model, X, Y).dtypes("linear") == {"float16": 3}


@pytest.mark.parametrize("scale", [0, -1.0, 3.0, float("nan"), float("inf"), 2.0**200])
def test_a_scale_is_a_power_of_two(scale):
    with pytest.raises(amp.ArgumentError, match=r"allowed are powers of two.*\nHint: scale="):
        lens.ranges(loss_fn, Net(), X, Y, scale=scale)
    with pytest.raises(amp.ArgumentError, match=r"allowed are powers of two"):
        lens.locate(loss_fn, Net(), X, Y, scale=scale)


def test_a_loss_that_is_no_function_is_refused():
    with pytest.raises(amp.ArgumentTypeError, match="loss_fn is a function"):
        lens.census(None, Net(), X, Y)


def test_a_small_product_of_large_inputs_is_told_by_their_cast():
    """At O1 an op casts them, at O2 the model's call does: both are a cast, of the very values."""
    model = nn.Linear(4, 1, rng=0)
    model.weight[...] *= np.float32(1e-6)
    large = np.full((2, 4), 1e5, np.float32)
    for policy, layer in (("O1", ""), ("O2", "")):
        found = lens.locate(lambda m, x: anp.mean(m(x)), model, large, policy=policy, scale=1.0)
        assert (found.op, found.layer, found.kind) == ("cast", layer, "overflow")
        assert found.operands[0].largest == 1e5
        assert "already" not in found.advice


def test_a_constant_that_is_inf_in_float16_is_told_from_the_batch():
    """As JAX and TensorFlow make it of ``x * 1e5``: in the dtype of ``x``, ahead of the op."""

    def scaled(model, x):
        hidden = model.first(x)
        return anp.mean(anp.multiply(hidden, np.asarray(1e5).astype(hidden.dtype)))

    with np.errstate(over="ignore"):
        found = lens.locate(scaled, Net(), X)
    assert (found.op, found.kind) == ("multiply", "overflow")
    assert (
        "one number that is 100000 in float32 and inf in float16 already: a constant"
        in found.advice
    )


def test_no_scale_is_safe_for_an_overflow_of_the_forward_pass():
    """One pass at the smallest scale tells, instead of one at each scale down to it."""
    passes = []

    def counted(model, x):
        passes.append(len(passes))
        return anp.mean(model(anp.multiply(model(x), np.float32(1e5))))

    with np.errstate(all="ignore"):
        found = lens.ranges(counted, nn.Linear(4, 4, rng=0), X)
    assert found.safe_scale is None
    assert len(passes) < 8


def test_a_batch_in_one_argument_is_to_be_spread():
    with pytest.raises(amp.ArgumentTypeError, match=r"Hint: loss_fn, model, \*batch$"):
        lens.locate(loss_fn, Net(), (X, Y))


def test_an_exception_of_float32_as_well_is_raised():
    def failing(model, x, y):
        model(x)
        raise KeyError("a mistake")

    for report in (lens.census, lens.ranges, lens.locate):
        with pytest.raises(KeyError, match="a mistake"):
            report(failing, Net(), X, Y)
