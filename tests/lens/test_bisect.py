"""Bisect: the search on sets, and on models of which it is known what fails in float16."""

import itertools
import json
from collections import Counter
from math import ceil, inf, log2
from types import SimpleNamespace

import autograd.numpy as anp
import numpy as np
import pytest
import sixty_ops
from hypothesis import given
from hypothesis import strategies as st
from sixty_ops import ALL_LOW, BATCHES, OPS, SCALE, SixtyOps

import ampbridge as amp
from ampbridge import lens
from ampbridge_lens.bisect import Kept, Search, candidates
from ampbridge_lens.search import culprits, without_spare
from ampbridge_lens.trials import Errors, Trial
from ampbridge_numpy import functional, nn

FEWER_THAN = 3 * log2(60) + 10


# -- the search, on sets


class Counted:
    """``passes`` of a search: whether one of ``sufficient`` is there as a whole."""

    def __init__(self, *sufficient):
        self.sufficient, self.tried = [frozenset(s) for s in sufficient], []

    def __call__(self, kept):
        self.tried.append(frozenset(kept))
        return any(needed <= set(kept) for needed in self.sufficient)


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_the_search_finds_the_culprits_and_nothing_else(case):
    count, guilty = case
    passes = Counted(guilty)
    assert set(culprits(range(count), passes)) == guilty
    assert len(passes.tried) <= len(guilty) * (ceil(log2(count)) + 1) + 1


def test_three_of_sixty_wherever_they_are():
    most = 0
    for guilty in itertools.combinations(range(60), 3):
        passes = Counted(guilty)
        assert set(culprits(range(60), passes)) == set(guilty)
        most = max(most, len(set(passes.tried)))
    # Beside these: float32 twice, everything denied, and two of the last checks; the third is known.
    assert most + 5 < FEWER_THAN


@given(st.lists(st.sets(st.integers(0, 11), min_size=1), min_size=1, max_size=5))
def test_of_several_ways_one_is_found_that_can_spare_nothing(sufficient):
    passes = Counted(*sufficient)
    found = list(culprits(range(12), passes))
    assert passes(found)
    assert not any(passes(set(found) - {each}) for each in found)


def test_the_first_of_those_that_stand_for_one_another_is_taken():
    assert list(culprits(range(9), Counted({3}, {5}))) == [3]


@given(st.sets(st.frozensets(st.integers(0, 5))), st.sets(st.integers(0, 5), min_size=1))
def test_nothing_to_spare_is_left_where_more_may_hurt(hurting, start):
    passing = lambda kept: frozenset(kept) not in hurting  # noqa: E731
    left = without_spare(sorted(start), passing)
    assert left == sorted(start) or passing(left)
    assert not any(passing(set(left) - {each}) for each in left)


# -- sixty ops, of which some fail


def bisected(*faulty, **options):
    model = SixtyOps(*faulty)
    return lens.bisect(sixty_ops.loss_fn, model, BATCHES, ALL_LOW, scale=SCALE, **options)


def errors_of(model, policy):
    """The worst of both errors, from ``amp.value_and_grad``: a way of its own to them."""
    worst = 0.0
    for batch in BATCHES:
        losses, gradients = [], []
        for each in ("O0", policy):
            scaler = amp.GradScaler(SCALE) if each != "O0" else None
            with np.errstate(all="ignore"):
                loss, grads = amp.value_and_grad(
                    sixty_ops.loss_fn, model, *batch, policy=each, scaler=scaler
                )
            losses.append(float(loss))
            joined = np.concatenate([np.ravel(g) for g in grads]).astype(np.float64)
            gradients.append(joined / (SCALE if scaler else 1.0))
        expected, found = losses
        off = [abs(found - expected) / abs(expected)]
        off.append(np.linalg.norm(gradients[1] - gradients[0]) / np.linalg.norm(gradients[0]))
        worst = max([worst, *(float(e) if np.isfinite(e) else np.inf for e in off)])
    return worst


def test_there_are_sixty_ops_in_float16():
    rows = lens.census(sixty_ops.loss_fn, SixtyOps(), *BATCHES[0], policy=ALL_LOW).rows
    assert {row.op for row in rows if row.dtype == "float16"} == set(OPS)
    assert len(OPS) == 60


def test_a_sound_model_needs_nothing():
    found = bisected()
    assert (found.entries, found.policy, found.runs) == ((), ALL_LOW, 3)
    assert 0 < found.errors_before.worst < 1e-2
    assert found.errors_before == found.errors_after


IN_ORDER = list(OPS)
SHUFFLED = np.random.default_rng(0).permutation(IN_ORDER)
CASES = {
    "overflow, flush, cancellation": ("exp", "log", "subtract"),
    "the first": IN_ORDER[:3],
    "the last": IN_ORDER[-3:],
    "neighbours": IN_ORDER[29:32],
    "far apart": (IN_ORDER[0], IN_ORDER[30], IN_ORDER[-1]),
    "matrix products": ("matmul", "linear", "einsum"),
    "slopes": ("asin", "acos", "atanh"),
    **{f"random {i}": three for i, three in enumerate(SHUFFLED.reshape(20, 3))},  # each op once
}
MORE = {f"random {i}" for i in range(3, 20)}


@pytest.mark.parametrize(
    "faulty",
    [
        pytest.param(faulty, id=name, marks=pytest.mark.slow if name in MORE else ())
        for name, faulty in CASES.items()
    ],
)
def test_three_culprits_among_sixty_ops(faulty):
    found = bisected(*faulty)
    assert sorted(entry.name for entry in found.entries) == sorted(faulty)
    assert {entry.kind for entry in found.entries} == {"op"}
    assert found.runs < FEWER_THAN
    assert found.policy.deny == tuple(sorted(faulty))
    assert set(found.policy.allow) == set(OPS) - set(faulty)
    # One call in each batch.
    assert {entry.calls for entry in found.entries} == {2}


def test_what_it_says_of_errors():
    faulty = ("exp", "log", "subtract")
    found, model = bisected(*faulty), SixtyOps(*faulty)
    assert errors_of(model, ALL_LOW) == found.errors_before.worst == np.inf
    assert errors_of(model, found.policy) == pytest.approx(found.errors_after.worst, rel=1e-6)
    assert found.errors_after.worst < 1e-2
    for entry in found.entries:
        without = found.policy.replace(
            deny=[op for op in found.policy.deny if op != entry.name],
            allow=[*found.policy.allow, entry.name],
        )
        assert errors_of(model, without) == pytest.approx(entry.errors_without.worst, rel=1e-6)
        assert entry.errors_without.worst > 1e-2


def test_runs_are_passes_over_all_batches():
    passes = []

    def loss_fn(model, x):
        passes.append(x)
        return model(x)

    found = lens.bisect(loss_fn, SixtyOps("exp", "log"), BATCHES, ALL_LOW, scale=SCALE)
    assert len(passes) == found.runs * len(BATCHES)


def test_the_batch_that_is_farthest_off_decides():
    class Exp(nn.Module):
        def __init__(self):
            self.weight = nn.Parameter(np.ones(1, np.float32))

        def forward(self, x):
            return anp.sum(anp.exp(self.weight * x))

    policy, small, large = amp.Policy(allow=["exp"]), np.ones(1, "f"), np.full(1, 12, "f")
    for batches, needed in [([(small,)], ()), ([(small,), (large,)], ("exp",))]:
        found = lens.bisect(lambda m, x: m(x), Exp(), batches, policy, scale=1.0)
        assert found.policy.deny == needed


# -- layers


class Block(nn.Module):
    """``exp`` of a weight, divided by its size in float32, and some more calls in float16."""

    def __init__(self, exponent, others):
        self.weight = nn.Parameter(np.full(4, exponent, np.float32))
        self.factor = np.full(4, np.exp(-exponent), np.float32)
        self.others = others

    def forward(self, x):
        low = functional.linear(x, np.eye(4, dtype=np.float32))  # in float16
        for _ in range(self.others):
            low = anp.tanh(low)
        return anp.sum(anp.exp(self.weight * x) * self.factor) + 1e-3 * anp.sum(low)


class Blocks(nn.Module):
    """Twelve of them; where the exponent is 12, float16 overflows."""

    def __init__(self, *faulty, others=0):
        self.blocks = [Block(12.0 if i in faulty else 1.0, others) for i in range(12)]

    def forward(self, x):
        return sum(block(x) for block in self.blocks)


ONES = [(np.ones((1, 4), np.float32),)]


def bisected_blocks(*faulty, others=0, **options):
    policy = amp.Policy(allow=["exp"], **options)
    model = Blocks(*faulty, others=others)
    return lens.bisect(lambda m, x: m(x), model, ONES, policy, scale=1.0)


@pytest.mark.parametrize("faulty", [(7,), (0,), (11,), (3, 8), (0, 1, 11)])
def test_layers_are_kept_where_that_costs_fewer_calls_than_denying_an_op(faulty):
    found = bisected_blocks(*faulty)
    assert {entry.name for entry in found.entries} == {f"blocks.{i}" for i in faulty}
    assert {(entry.kind, entry.calls) for entry in found.entries} == {("layer", 2)}  # exp, linear
    assert found.policy == amp.Policy(allow=["exp"], keep=[f"blocks.{i}" for i in faulty])


@pytest.mark.parametrize("faulty, others", [(range(8), 0), ((0, 1, 2), 4), ((5,), 11)])
def test_an_op_is_denied_where_that_costs_fewer_calls_than_keeping_layers(faulty, others):
    found = bisected_blocks(*faulty, others=others)
    assert [(e.kind, e.name, e.calls) for e in found.entries] == [("op", "exp", 12)]
    assert found.policy == amp.Policy(deny=["exp"])


def test_layers_are_given_up_as_soon_as_they_cost_as_much_as_the_op():
    """Six of them do, as each makes two calls: at most 6 * (log2(12) + 1) runs, not 12 times that."""
    found = bisected_blocks(*range(12))
    assert [entry.name for entry in found.entries] == ["exp"]
    others = 7  # float32 twice, as given, all, either op, all layers
    assert found.runs <= others + 6 * (ceil(log2(12)) + 1)


def test_what_the_given_policy_says_stays():
    found = bisected_blocks(2, keep=["blocks.0"], deny=["tanh"], output_dtype="float16", others=1)
    assert found.policy == amp.Policy(
        allow=["exp"], deny=["tanh"], keep=["blocks.0", "blocks.2"], output_dtype="float16"
    )


def test_errors_have_to_be_below_the_tolerance():
    """At the error that a model has, and at the next number above."""
    x = np.array([[1.0, 2.0, 3.0, 4.1]], np.float32)  # 4.1 is none of float16's
    model = nn.Linear(4, 1, bias=False, rng=0)
    model.weight[...] = 1.0

    def bisected(tolerance):
        return lens.bisect(
            lambda m, x: anp.sum(m(x)), model, [(x,)], scale=1.0, tolerance=tolerance
        )

    error = bisected(1.0).errors_before.worst  # of the weight's gradient, which is x
    norm = np.linalg.norm(x.astype(np.float64))
    assert error == pytest.approx(np.linalg.norm(x.astype(np.float16) - x) / norm, rel=1e-6)
    assert [entry.name for entry in bisected(error).entries] == ["linear"]
    assert bisected(np.nextafter(error, 1.0)).entries == ()


def test_what_float32_has_not_at_all_is_infinitely_far_off():
    x = np.array([[4.1]], np.float32)
    model = nn.Linear(1, 1, bias=False, rng=0)
    model.weight[...] = 1.0
    found = lens.bisect(lambda m, x: anp.sum(m(x) - x), model, [(x,)], scale=1.0)
    assert found.errors_before.loss == inf  # 4.1016 - 4.1, where it is 0
    assert [entry.name for entry in found.entries] == ["linear"]


class Difference(nn.Module):
    """What is left of a large weight, where no op is to blame if the weight itself is rounded."""

    def __init__(self):
        self.weight = nn.Parameter(np.full(4, 1000.1, np.float32))

    def forward(self, x):
        return anp.subtract(self.weight, 1000 * x)


class WithDifference(nn.Module):
    def __init__(self):
        self.inner, self.outer = Difference(), nn.Linear(4, 4, rng=0)

    def forward(self, x):
        return anp.mean(self.outer(self.inner(x)) ** 2)


def test_layers_whose_weights_are_rounded_at_o2():
    batches = [(np.ones((1, 4), np.float32),)]
    found = lens.bisect(lambda m, x: m(x), WithDifference(), batches, "O2", scale=1.0)
    assert [(entry.kind, entry.name) for entry in found.entries] == [("layer", "inner")]
    assert found.policy == amp.Policy("O2", keep=["inner"])


# -- what is tried, in which order


def test_ops_that_cost_little_are_tried_before_matrix_products():
    low = Counter({("linear", "a"): 1, ("add", "a"): 3, ("tanh", "b"): 2, ("numpy:unwrap", "b"): 1})
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    order = candidates(amp.backend("numpy"), model, amp.Policy(), low)
    assert order == [Kept("op", name) for name in ("tanh", "add", "linear")]


@pytest.mark.parametrize(
    "policy, low, layers",
    [
        (amp.Policy(), {("numpy:unwrap", "layers.0"): 1}, ["layers.0"]),  # no name to deny it by
        (amp.Policy(lists="native"), {("tanh", "layers.1"): 1}, ["layers.1"]),  # has no deny list
        (amp.Policy("O2"), {("tanh", "layers.1"): 1}, ["layers.0"]),  # has weights
        (amp.Policy(), {("numpy:unwrap", ""): 1}, []),  # the model itself has no name
    ],
)
def test_layers_are_tried_where_no_op_will_do(policy, low, layers):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    found = candidates(amp.backend("numpy"), model, policy, Counter(low))
    assert [name for kind, name in found if kind == "layer"] == layers


def test_where_more_does_hurt_nothing_is_left_to_spare():
    """Denying sin or cos hurts unless neg is denied as well: the search meets neg before tanh."""

    def run(policy, doing):
        denied = set(policy.deny)
        passes = "tanh" in denied and ("neg" in denied or denied.isdisjoint({"sin", "cos"}))
        return Trial(Errors(0.0 if passes else 1.0, 0.0), low)

    low = Counter({("tanh", ""): 1, ("sin", ""): 2, ("cos", ""): 3, ("neg", ""): 4})
    subject = SimpleNamespace(backend=amp.backend("numpy"), model=nn.ReLU())
    trials = SimpleNamespace(subject=subject, run=run, runs=0, expected=0)
    assert Search(trials, amp.Policy(), 1e-2).minimal() == [Kept("op", "tanh")]


# -- what is left behind, told and refused


def test_the_model_is_as_before():
    model = SixtyOps("exp")
    before = amp.backend("numpy").read_weights(model)
    lens.bisect(sixty_ops.loss_fn, model, BATCHES, ALL_LOW, scale=SCALE)
    for name, values in amp.backend("numpy").read_weights(model).items():
        np.testing.assert_array_equal(values, before[name])
    assert amp.backend("numpy").decoration(model, None) is None


def test_as_data_and_in_words():
    found = bisected("exp")
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert amp.Policy.from_dict(data["policy"]) == found.policy
    assert data["entries"] == [
        {"kind": "op", "name": "exp", "calls": 2, "errors_without": data["errors_before"]}
    ]
    assert data["errors_before"]["loss"] is None  # it was infinite
    (row,) = found.table().rows
    assert row[:4] == ("op", "exp", "2", "inf")
    text = found.table().text(None)
    assert f"{found.runs} runs" in text
    assert repr(found.policy) in text


def test_gradients_that_overflow_alone_may_be_the_scales_doing():
    found = lens.bisect(sixty_ops.loss_fn, SixtyOps(), BATCHES, ALL_LOW, scale=2.0**16)
    assert (found.entries, found.given_scale) == ((), 2.0**16)
    assert found.scale < 2.0**16
    assert str(found).endswith(f"at a loss scale of 2^16: 2^{np.log2(found.scale):g} is enough.")
    assert "safe_scale" not in str(bisected("exp"))


def test_progress_is_told_run_by_run():
    told = []
    found = bisected("exp", "log", progress=lambda *what: told.append(what))
    assert [done for done, _, _ in told] == list(range(found.runs + 1))
    assert all(done < total for done, total, _ in told[:-1])
    assert told[-1][:2] == (found.runs, found.runs)


def test_a_bar_on_a_terminal_alone(capsys):
    bisected(progress=True)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "batches, options, error, message",
    [
        ([], {}, amp.ArgumentTypeError, "at least one batch"),
        (iter(()), {}, amp.ArgumentTypeError, "at least one batch"),
        (np.ones((1, 8), "f"), {}, amp.ArgumentTypeError, "at least one batch"),
        ([np.ones(8, "f")], {}, amp.ArgumentTypeError, r"batches=\[\(x, y\)\]"),
        (BATCHES, {"tolerance": 0}, amp.ArgumentError, "tolerance=0"),
        (BATCHES, {"tolerance": np.nan}, amp.ArgumentError, "tolerance=nan"),
        (BATCHES, {"tolerance": "1%"}, amp.ArgumentError, "tolerance='1%'"),
        (BATCHES, {"scale": 3.0}, amp.ArgumentError, "powers of two"),
        (BATCHES, {"progress": "bar"}, amp.ArgumentTypeError, "Hint: progress="),
    ],
)
def test_what_cannot_be_is_refused(batches, options, error, message):
    with pytest.raises(error, match=message):
        lens.bisect(sixty_ops.loss_fn, SixtyOps(), batches, ALL_LOW, **options)


def test_a_loss_that_is_another_each_time():
    rng = np.random.default_rng(0)

    def loss_fn(model, x):
        return model(x * rng.uniform(0.8, 1.0))  # as dropout does

    with pytest.raises(amp.ArgumentError, match=r"run twice(.|\n)*model.eval\(\)"):
        lens.bisect(loss_fn, SixtyOps(), BATCHES, ALL_LOW, scale=SCALE)


def test_a_loss_that_is_infinite_in_float32():
    with pytest.raises(amp.ArgumentError, match=r"in float32 already(.|\n)*lens.locate"):
        lens.bisect(lambda m, x: m(x) * np.inf, SixtyOps(), BATCHES, ALL_LOW)


class Scaled(nn.Module):
    """A parameter of the model itself: no layer or op keeps it in float32 at O2."""

    def __init__(self):
        super().__init__()
        self.first, self.scale = nn.Linear(4, 4, rng=0), nn.Parameter(np.full(4, 1 / 3, np.float32))

    def forward(self, x):
        return anp.multiply(self.first(x), self.scale)


@pytest.mark.parametrize(
    "level, output_dtype, hint",
    [
        ("O1", "float16", "output_dtype='float32'"),
        ("O2", "float16", "output_dtype='float32'"),
        ("O2", "float32", "policy='O1'"),
    ],
)
def test_what_no_candidate_keeps_in_float32(level, output_dtype, hint):
    policy = amp.Policy(level, allow=["tanh"], output_dtype=output_dtype)
    loss_fn = lambda m, x: anp.sum(anp.tanh(m(x))) * anp.sum(m(x))  # noqa: E731
    with pytest.raises(amp.ArgumentError, match=rf"candidates in float32(.|\n)*{hint}"):
        lens.bisect(loss_fn, Scaled(), ONES, policy, tolerance=1e-6)


def test_a_policy_of_float32_needs_nothing():
    found = lens.bisect(sixty_ops.loss_fn, SixtyOps("exp"), BATCHES, "O0")
    assert (found.entries, found.policy) == ((), amp.Policy("O0"))
    assert found.errors_after.worst < 1e-6  # the loss scale takes some of the smallest apart
