"""A backend without any of the roles trains, says what it cannot do, and the suite asks it no more."""

import pytest

import ampbridge as amp
from ampbridge.adapters import registry
from ampbridge.adapters.backend import Backend
from ampbridge.adapters.roles.native_objects import NativeObjects
from ampbridge.adapters.roles.observing import Observing
from ampbridge.adapters.roles.probing import Probing
from ampbridge.adapters.roles.saving import Saving
from ampbridge_numpy.backend import NumpyBackend
from ampbridge_numpy.testing import NumpyHarness
from ampbridge_testing.reference import example
from ampbridge_testing.roles import claims
from ampbridge_testing.runner import outcomes

ROLES = (Saving, Observing, Probing, NativeObjects)
OF_ROLES = {name for role in ROLES for name in vars(role) if name[0] != "_" and name != "name"}


class Bare(Backend):
    """What NumPy's adapter does in a step, and nothing else."""


for name, member in vars(NumpyBackend).items():
    if not name.startswith("_") and name not in OF_ROLES:
        setattr(Bare, name, member)
Bare.__abstractmethods__ = frozenset()


@pytest.fixture
def trained(monkeypatch):
    harness, given = NumpyHarness(Bare()), example()
    monkeypatch.setitem(registry._loaded, "numpy", harness.backend)
    model = harness.layered(given.weights)
    step = amp.train_step(
        lambda model, x, y: harness.mean_squared_error(model(x), y),
        model,
        harness.optimizer(model, "momentum", 0.1),
        policy="O2:bfloat16",
    )
    assert [step(given.x, given.target).applied for _ in range(3)] == [True] * 3
    return step


def test_adapters_claim_the_roles_that_they_have():
    assert not any(claims(Bare(), role) for role in ROLES)
    assert [claims(NumpyBackend(), role) for role in ROLES] == [True, True, True, False]


def test_the_suite_asks_for_what_is_claimed():
    of_roles = [
        "test_weights_written_are_those_that_train",
        "test_a_checkpoint_holds_them",
        "test_observe_shows_a_denied_op_in_float32",
        "test_no_field_of_a_policy_is_ignored",
    ]
    of_a_step = ["test_undecorate_of_what_is_not_decorated_changes_nothing"]
    told = outcomes(NumpyHarness(Bare()), [*of_roles, *of_a_step])
    assert {name: told[name] for name in of_a_step} == dict.fromkeys(of_a_step, "passed")
    assert {name: told[name] for name in of_roles} == dict.fromkeys(of_roles, "skipped")


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda step, path: step.save(path), "cannot read and write weights and slots"),
        (lambda step, path: amp.explain("O1", Bare()), "cannot explain a policy"),
        (lambda step, path: Bare().devices(), "cannot tell the devices of this machine"),
        (
            lambda step, path: amp.lens.census(
                step.loss_fn, amp.undecorate(step.model, step.optimizer)[0], *example()[1:]
            ),
            "numpy: this adapter cannot",
        ),
        (lambda step, path: Bare().native_scaler({}, None), "has no loss scaler of its own"),
    ],
    ids=["save", "explain", "devices", "census", "scaler"],
)
def test_what_it_cannot_do_it_says(trained, tmp_path, use, says):
    with pytest.raises(amp.UnsupportedError, match=says) as caught:
        use(trained, tmp_path)
    assert "Hint: " in str(caught.value)
