"""Workloads by name and from files of one's own: what is built, and what is refused."""

import sys

import numpy as np
import pytest

import ampbridge as amp
from ampbridge import workloads
from ampbridge.workloads import Workload, digits

OWN = """
import sys

import numpy as np
from ampbridge.workloads import Workload
from ampbridge_numpy import nn, optim
from beside import SIZE

def build(backend, seed):
    rng = np.random.default_rng(seed)
    model = nn.Linear(SIZE, 1, bias=False, rng=rng)
    x = rng.uniform(0.0, 0.1, (8, SIZE)).astype(np.float32)  # 2^16 times its gradients fit
    return {made}
"""
GOOD = (
    "Workload(model, optim.SGD(model.parameters(), 0.1), lambda m, x: (m(x) ** 2).mean(), [(x,)])"
)


@pytest.fixture
def written(tmp_path):
    (tmp_path / "beside.py").write_text("SIZE = 3\n")

    def write(text):
        file = tmp_path / "own.py"
        file.write_text(text)
        return str(file)

    return write


def test_a_file_of_ones_own(written):
    path = list(sys.path)
    build = workloads.find(written(OWN.format(made=GOOD)))
    first, again, other = (build("numpy", seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.model.weight, again.model.weight)
    assert (first.model.weight != other.model.weight).all()
    step = amp.train_step(first.loss_fn, first.model, first.optimizer)
    assert step(*first.batches[0]).applied
    assert sys.path == path


def test_batches_begin_again_where_there_are_fewer():
    workload = Workload(None, None, lambda: None, [(1,), (2,)])
    assert workload.first(5) == [(1,), (2,), (1,), (2,), (1,)]


def test_the_digits_are_the_same_numbers_each_time():
    build = workloads.find("digits-mlp")
    one, two = build("numpy", 3), build("numpy", 3)
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        np.testing.assert_array_equal(a, b)
    for one_batch, other in zip(one.first(12), two.first(12), strict=True):
        np.testing.assert_array_equal(one_batch[0], other[0])
    assert 0.0 <= one.accuracy() < 0.4  # untrained


MISTAKES = {
    "a name": ("digits-cnv", "No workload 'digits-cnv'; allowed are ", "Hint: digits-conv"),
    "no file": ("missing.py", "There is no file 'missing.py'", "Hint: a Python file"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_cannot_be_found(mistake):
    given, begins, hint = MISTAKES[mistake]
    with pytest.raises(amp.AmpBridgeError) as caught:
        workloads.find(given)
    assert str(caught.value).startswith(begins)
    assert hint in str(caught.value)


FILES = {
    "no build": ("x = 1\n", "has no function `build`"),
    "a package that is missing": ("import missing_package\n", "needs a package that is not"),
    "a mistake": ("1 / 0\n", "cannot be run: ZeroDivisionError"),
}


@pytest.mark.parametrize("mistake", FILES)
def test_a_file_that_cannot_be_used(mistake, written):
    text, says = FILES[mistake]
    with pytest.raises(amp.ArgumentError, match=says):
        workloads.find(written(text))


MADE = {
    "no Workload": ("model", "which is no Workload"),
    "no batches": (GOOD.replace("[(x,)]", "[]"), "allowed is a list of at least one"),
    "a generator": (GOOD.replace("[(x,)]", "iter([(x,)])"), "allowed is a list of at least one"),
}


@pytest.mark.parametrize("mistake", MADE)
def test_what_build_may_not_return(mistake, written):
    made, says = MADE[mistake]
    build = workloads.find(written(OWN.format(made=made)))
    with pytest.raises(amp.ArgumentTypeError, match=says):
        build("numpy", 0)


def test_a_model_of_another_framework(written):
    build = workloads.find(written(OWN.format(made=GOOD)))
    with pytest.raises(amp.ArgumentTypeError, match="made a model of another framework"):
        build("torch", 0)


def test_the_digits_are_scikit_learns():
    datasets = pytest.importorskip("sklearn.datasets")
    theirs = datasets.load_digits()
    order = np.random.default_rng(0).permutation(1797)  # of the split
    training, test = digits.load("mlp")
    x = np.concatenate([test.x, training.x])[:, 0] * 16
    y = np.concatenate([test.y, training.y])
    assert np.array_equal(x, theirs.images[order])
    assert np.array_equal(y, theirs.target[order])
