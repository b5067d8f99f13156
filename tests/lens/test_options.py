"""Every option of the lens changes what is reported: none is accepted and ignored."""

import inspect

import autograd.numpy as anp
import numpy as np
import pytest

from ampbridge import lens
from ampbridge_numpy import nn, optim

X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
SUBJECT = {"loss_fn", "model", "batch", "batches", "make"}

# Report -> its option -> another value than the default
OTHERS = {
    lens.census: {"policy": "O1:bfloat16", "passes": 2},
    lens.ranges: {"policy": "O1:bfloat16", "scale": 2.0**4},
    lens.locate: {"policy": "O1:bfloat16", "scale": 2.0**4},
    lens.bisect: {"policy": "O1:bfloat16", "scale": 2.0**4, "tolerance": 1e-4, "progress": True},
    lens.worth_it: {"policies": ("O0", "O2"), "steps": 2, "rounds": 3, "progress": True},
}


def model():
    return nn.Linear(4, 4, rng=0)


def made():
    each = model()
    return each, optim.SGD(each.parameters(), 1e-3)


def overflowing(model, x):
    """Beyond float16 in its own values, and in its gradients from a scale of 2**8."""
    return anp.mean(anp.matmul(model(x) * 300.0, anp.transpose(x) * 300.0))


def report(function, told, **options):
    """What a report says, and what it tells of its progress; of times, how many there were."""
    if options.get("progress"):
        options["progress"] = lambda done, total, doing: told.append(doing)
    subject = (made, X) if function is lens.worth_it else (model(), X)
    if function is lens.bisect:
        subject = (model(), [(X,)])

    def loss_fn(model, x):
        told.append("pass")
        return overflowing(model, x)

    found = function(loss_fn, *subject, **options).to_dict()
    if function is lens.worth_it:
        return [row["policy"] for row in found["rows"]], told
    for row in found.get("rows", ()):
        row.pop("share", None)
    return found, told


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "function, option",
    [(function, option) for function, options in OTHERS.items() for option in options],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_no_option_of_the_lens_is_ignored(function, option):
    default = report(function, [])
    assert report(function, [], **{option: OTHERS[function][option]}) != default


@pytest.mark.parametrize("function", OTHERS, ids=lambda function: function.__name__)
def test_every_option_is_among_them(function):
    assert set(inspect.signature(function).parameters) - SUBJECT == set(OTHERS[function])
