"""What is passed as a model, an optimizer, a loss or a scheduler, and is something else."""

import numpy as np
import pytest

import ampbridge as amp
from ampbridge.adapters import registry


def their_loss(prediction, target):
    raise NotImplementedError


their_loss.__module__ = "toyframework.losses"


def loss_fn(model):
    return np.zeros(())


@pytest.fixture
def parts(toy, monkeypatch):
    monkeypatch.setattr(registry, "backend_names", lambda: ["toyframework"])
    model = toy.Model()
    toy.model, toy.optimizer = model, toy.Optimizer(model)
    return toy


MISTAKES = {
    "no optimizer": (
        lambda t: (loss_fn, t.model, None),
        "optimizer is an optimizer of toyframework, not None.\nHint: ToyOptimizer(model)",
    ),
    "a string": (
        lambda t: (loss_fn, t.model, "adam"),
        "optimizer is an optimizer of toyframework, not 'adam'.\nHint: ToyOptimizer(model)",
    ),
    "a list": (
        lambda t: (loss_fn, t.model, [t.optimizer]),
        "optimizer is an optimizer of toyframework, not builtins.list.\n"
        "Hint: optimizer = optimizer[0]",
    ),
    "a class": (
        lambda t: (loss_fn, t.model, t.Optimizer),
        "optimizer is an optimizer of toyframework, not the class toyframework.optim.ToyOptimizer.\n"
        "Hint: ToyOptimizer(model)",
    ),
    "a scheduler": (
        lambda t: (loss_fn, t.model, t.Rates(t.optimizer)),
        "optimizer is an optimizer of toyframework, not a scheduler (toyframework.rates.ToyRates).\n"
        "Hint: amp.train_step(loss_fn, model, optimizer, scheduler=scheduler)",
    ),
    "what holds the optimizer": (
        lambda t: (loss_fn, t.model, t.Trainer(t.optimizer)),
        "optimizer is an optimizer of toyframework, not toyframework.trainer.ToyTrainer.\n"
        "Hint: optimizer = optimizer.network",
    ),
    "what holds the model": (
        lambda t: (loss_fn, t.Trainer(t.model), t.optimizer),
        "model is a model of toyframework, not toyframework.trainer.ToyTrainer.\n"
        "Hint: model = model.network",
    ),
    "no model": (
        lambda t: (loss_fn, 3, t.optimizer),
        "model is a model of toyframework, not 3.\nHint: ToyModel()",
    ),
    "the loss last": (
        lambda t: (t.model, t.optimizer, loss_fn),
        "model is a model of toyframework, not an optimizer (toyframework.optim.ToyOptimizer).\n"
        "Hint: amp.train_step(loss_fn, model, optimizer), in this order.",
    ),
    "the loss in the middle": (
        lambda t: (t.model, loss_fn, t.optimizer),
        "model is a model of toyframework, not the function loss_fn.\n"
        "Hint: amp.train_step(loss_fn, model, optimizer), in this order.",
    ),
    "optimizer and model exchanged": (
        lambda t: (loss_fn, t.optimizer, t.model),
        "model is a model of toyframework, not an optimizer (toyframework.optim.ToyOptimizer).\n"
        "Hint: amp.train_step(loss_fn, model, optimizer), in this order.",
    ),
    "a loss object": (
        lambda t: (t.Loss(), t.model, t.optimizer),
        "loss_fn is a function of (model, *batch), not a loss (toyframework.losses.ToyLoss).\n"
        "Hint: def loss_fn(): ...",
    ),
    "the framework's own loss": (
        lambda t: (their_loss, t.model, t.optimizer),
        "loss_fn is a function of (model, *batch), not toyframework.losses.their_loss, which takes no "
        "model.\n"
        "Hint: def loss_fn(model, x, y): return their_loss(model(x), y)",
    ),
    "a model as the loss": (
        lambda t: (t.Model(), t.model, t.optimizer),
        "loss_fn is a function of (model, *batch), not a model (toyframework.nn.ToyModel).\n"
        "Hint: def loss_fn(): ...",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_parts_of_another_kind(mistake, parts):
    make, text = MISTAKES[mistake]
    with pytest.raises(amp.ArgumentTypeError) as error:
        amp.train_step(*make(parts))
    assert str(error.value) == text
    assert parts.model.decorations == [None]


@pytest.mark.parametrize(
    ("in_use", "kind", "text"),
    [
        (["toyframework"], amp.ArgumentTypeError, "model is a model of toyframework, not 3.\n"),
        (["numpy", "toyframework"], amp.BackendNotFoundError, "No registered framework knows"),
    ],
)
def test_what_is_of_no_framework_is_told_of_the_one_in_use(parts, monkeypatch, in_use, kind, text):
    monkeypatch.setattr(registry, "names_in_use", lambda: in_use)
    with pytest.raises(kind) as error:
        amp.decorate(3)
    assert str(error.value).startswith(text)


@pytest.mark.parametrize(
    ("call", "order"),
    [
        (lambda t: amp.decorate(t.optimizer, t.model), "model, optimizer"),
        (lambda t: amp.value_and_grad(t.model, loss_fn), "loss_fn, model"),
    ],
)
def test_two_that_are_exchanged(call, order, parts):
    with pytest.raises(
        amp.ArgumentTypeError, match=rf"model is .*\nHint: {order}, in this order\.$"
    ):
        call(parts)


NO_OPTIMIZER = (
    "optimizer is an optimizer of toyframework, not a scheduler (toyframework.rates.ToyRates)"
)


@pytest.mark.parametrize(
    "call",
    [
        lambda t, wrong: amp.decorate(t.model, wrong),
        lambda t, wrong: amp.GradScaler().step(wrong),
        lambda t, wrong: amp.GradScaler().unscale(wrong),
    ],
    ids=["decorate", "step", "unscale"],
)
def test_the_same_words_elsewhere(call, parts):
    with pytest.raises(amp.ArgumentTypeError) as error:
        call(parts, parts.Rates(parts.optimizer))
    assert str(error.value).startswith(NO_OPTIMIZER)


@pytest.mark.parametrize("policy", ["O2:bfloat16", amp.Policy("O1")])
def test_a_policy_in_the_optimizer_s_place(policy, parts):
    with pytest.raises(amp.ArgumentTypeError) as error:
        amp.decorate(parts.model, policy)
    assert str(error.value) == (
        f"optimizer is what trains the model, and {policy!r} is a policy.\n"
        f"Hint: amp.decorate(model, policy={policy!r})"
    )


def test_a_scaler_that_knows_its_framework(parts):
    scaler = amp.GradScaler()
    amp.value_and_grad(loss_fn, parts.model, scaler=scaler)
    with pytest.raises(amp.ArgumentTypeError, match="an optimizer of toyframework, not None"):
        scaler.step(None)


def test_value_and_grad_of_a_loss_object(parts):
    with pytest.raises(amp.ArgumentTypeError, match=r"not a loss \(toyframework"):
        amp.value_and_grad(parts.Loss(), parts.model)


NONE_OF_THE_MODEL = (
    "The optimizer (toyframework.optim.ToyOptimizer) holds none of the model's parameters.\n"
    "Hint: optimizer = ToyOptimizer(...), of the parameters that the model has now, not of copies"
)


def step_by_hand(scaler, model, optimizer):
    _, grads = amp.value_and_grad(loss_fn, model, scaler=scaler)
    scaler.step(optimizer, grads)


@pytest.mark.parametrize(
    "call",
    [
        lambda t, other: amp.train_step(loss_fn, t.model, other),
        lambda t, other: amp.decorate(t.model, other),
        lambda t, other: step_by_hand(amp.GradScaler(), t.model, other),
    ],
    ids=["train_step", "decorate", "GradScaler.step"],
)
def test_an_optimizer_of_another_model(call, parts):
    other = parts.Optimizer(parts.Model())
    with pytest.raises(amp.ArgumentError) as error:
        call(parts, other)
    assert str(error.value) == NONE_OF_THE_MODEL
    assert other.steps == 0


class WithClosure:
    """Mixed into the framework's optimizer: what the loss is evaluated by."""

    def step(self, closure):
        raise NotImplementedError


class InTwoSteps:
    """SAM's way."""

    def first_step(self):
        raise NotImplementedError

    second_step = first_step


@pytest.mark.parametrize("kind", [WithClosure, InTwoSteps])
def test_an_optimizer_that_evaluates_the_loss(kind, parts):
    optimizer = type("Sharp", (parts.Optimizer, kind), {})(parts.model)
    message = (
        "Sharp evaluates the loss several times a step; a training step does so once.\n"
        "Hint: with ampbridge.autocast(policy): inside of your closure, without a scaler."
    )
    for call in (
        lambda: amp.train_step(loss_fn, parts.model, optimizer),
        lambda: amp.GradScaler().step(optimizer),
    ):
        with pytest.raises(amp.UnsupportedError) as error:
            call()
        assert str(error.value) == message


class Plateau:
    def step(self, metrics, epoch=None):
        raise NotImplementedError


def test_a_scheduler_that_needs_a_metric(parts):
    with pytest.raises(amp.ArgumentTypeError) as error:
        amp.train_step(loss_fn, parts.model, parts.optimizer, scheduler=Plateau())
    assert str(error.value) == (
        f"scheduler is advanced by each applied step, without arguments; that of {__name__}.Plateau "
        "needs metrics.\n"
        "Hint: train_step(...) without it, and scheduler.step(validation_loss) after each epoch."
    )
    with pytest.raises(
        amp.ArgumentTypeError, match=r"needs count\.\nHint: .*optax\.adam\(schedule\)$"
    ):
        amp.train_step(loss_fn, parts.model, parts.optimizer, scheduler=lambda count: 0.1)


def test_a_scheduler_of_another_optimizer(parts, monkeypatch):
    other = parts.Optimizer(parts.model)
    parts.optimizer.param_groups, other.param_groups = [{"lr": 1.0}], [{"lr": 1.0}]
    whose = "moves the learning rates of another optimizer than the step's.\n"
    with pytest.raises(amp.ArgumentError) as error:
        amp.train_step(loss_fn, parts.model, parts.optimizer, scheduler=parts.Rates(other))
    assert str(error.value) == (
        f"toyframework.rates.ToyRates {whose}"
        "Hint: scheduler=ToyRates(optimizer, ...), with the step's optimizer"
    )
    # As in Paddle, where the optimizer holds the scheduler:
    monkeypatch.setattr(parts.Backend, "moves_rates_of", lambda *_: False)
    rates = parts.Rates(other)
    del rates.optimizer
    with pytest.raises(amp.ArgumentError) as error:
        amp.train_step(loss_fn, parts.model, parts.optimizer, scheduler=rates)
    assert str(error.value) == (
        f"toyframework.rates.ToyRates {whose}"
        "Hint: optimizer = ToyOptimizer(learning_rate=scheduler, ...)"
    )


def test_a_scheduler_of_the_step_s_own_optimizer(parts):
    parts.optimizer.param_groups = [{"lr": 1.0}]
    rates = parts.Rates(parts.optimizer)
    assert amp.train_step(loss_fn, parts.model, parts.optimizer, scheduler=rates)


def test_a_scheduler_that_is_a_class(parts):
    with pytest.raises(amp.ArgumentTypeError, match=r"not the class .*Plateau"):
        amp.train_step(loss_fn, parts.model, parts.optimizer, scheduler=Plateau)


def test_a_decoration_that_fails_leaves_the_earlier_one(parts, monkeypatch):
    """Also where the framework, or somebody's optimizer, raised an error of its own."""
    amp.decorate(parts.model, parts.optimizer, "O1")
    decorate = parts.Backend.decorate

    def failing(self, model, optimizer, decoration):
        if decoration.policy.level == "O2":
            raise AttributeError("_hooks")
        decorate(self, model, optimizer, decoration)

    monkeypatch.setattr(parts.Backend, "decorate", failing)
    with pytest.raises(AttributeError):
        amp.decorate(parts.model, parts.optimizer, "O2")
    assert parts.model.decorations[-1].policy == amp.Policy("O1")
