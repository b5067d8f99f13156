"""``step.save`` and ``step.load`` go on bit by bit; what is compared is read with Paddle alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.optimizer import lr
from paddle_reference import bits, is_representable, normal, rounded

import ampbridge as amp
from ampbridge import Policy
from ampbridge.checkpoints import checkpoint
from ampbridge_numpy import nn as numpy_nn
from ampbridge_numpy import optim as numpy_optim
from ampbridge_paddle import training_state
from ampbridge_paddle.model.low_weights import low_dtype_of

IMAGES = normal(8, 1, 6, 6, seed=1)
LABELS = np.random.default_rng(2).integers(0, 3, [8, 1])


class Net(nn.Layer):
    """A convolution, three normalizations, and a table whose weight is also the last layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.batch_norm = nn.Conv2D(1, 4, 3), nn.BatchNorm2D(4)
        self.instance_norm = nn.InstanceNorm2D(4)
        self.inner, self.layer_norm = nn.Linear(64, 8), nn.LayerNorm(8)
        self.table = nn.Embedding(3, 8)
        self.head = nn.Linear(8, 3, bias_attr=False)
        self.idle = nn.Linear(2, 2)  # has no gradient, and so no slots
        self.register_buffer("offset", paddle.to_tensor(normal(8, seed=3)))
        self.register_buffer("scratch", paddle.zeros([2]), persistable=False)

    def forward(self, images: paddle.Tensor) -> paddle.Tensor:
        features = self.instance_norm(nn.functional.gelu(self.batch_norm(self.conv(images))))
        hidden = self.layer_norm(self.inner(features.flatten(1))) + self.offset
        return self.head(hidden) + paddle.matmul(hidden, self.table.weight, transpose_y=True)


def loss_fn(
    model: nn.Layer, images: paddle.Tensor, labels: paddle.Tensor, factor: paddle.Tensor
) -> Any:
    return nn.functional.cross_entropy(model(images), labels) * factor


OPTIMIZERS: Mapping[str, Callable[..., Any]] = {
    "SGD": paddle.optimizer.SGD,
    "Momentum": lambda rate, parameters: paddle.optimizer.Momentum(rate, 0.9, parameters),
    "Momentum, merged": lambda rate, parameters: paddle.optimizer.Momentum(
        rate, 0.9, parameters, use_multi_tensor=True
    ),
    "Adam": paddle.optimizer.Adam,
    "Adam, AMSGrad": lambda rate, parameters: paddle.optimizer.Adam(
        rate, parameters=parameters, amsgrad=True
    ),
    "AdamW": lambda rate, parameters: paddle.optimizer.AdamW(
        rate, parameters=parameters, name="mine"
    ),
    "RMSProp": lambda rate, parameters: paddle.optimizer.RMSProp(
        rate, momentum=0.5, centered=True, parameters=parameters
    ),
    "Adagrad": paddle.optimizer.Adagrad,
    "Adadelta": paddle.optimizer.Adadelta,
    "Adamax": paddle.optimizer.Adamax,
    "Lamb": paddle.optimizer.Lamb,
    "NAdam": paddle.optimizer.NAdam,
    "RAdam": paddle.optimizer.RAdam,
    "ASGD": lambda rate, parameters: paddle.optimizer.ASGD(rate, 3, parameters),
    "Rprop": lambda rate, parameters: paddle.optimizer.Rprop(rate, parameters=parameters),
}

POLICIES: Mapping[str, Policy] = {
    "O0": Policy("O0"),
    "O1 float16": Policy("O1"),
    "O2 float16": Policy("O2", keep=["head"]),
    "O2 bfloat16": Policy("O2", "bfloat16"),
    "O2 without masters": Policy("O2", masters=None),
}


def make_step(
    optimizer: Callable[..., Any] = OPTIMIZERS["Adam"],
    policy: Any = "O1",
    rate: Any = 2.0**-7,
    model: nn.Layer | None = None,
    **options: Any,
) -> amp.TrainStep:
    model = model or Net()
    made = optimizer(rate, parameters=model.parameters())
    scaler = amp.GradScaler(64.0, growth_interval=2, backoff_interval=1)
    return amp.train_step(loss_fn, model, made, policy=policy, scaler=scaler, **options)


def train(step: amp.TrainStep, first: int, last: int) -> list[tuple[float, float, bool]]:
    """Steps of which every fourth overflows."""
    results = []
    for number in range(first, last):
        rng = np.random.default_rng(number)
        factor = np.float32(np.inf if number % 4 == 2 else 1.0)
        images = rng.standard_normal(IMAGES.shape).astype(np.float32)
        result = step(images, LABELS, factor)
        results.append((result.loss, result.scale, result.applied))
    return results


def everything(step: amp.TrainStep) -> dict[str, Any]:
    """All that training goes on with, as bits, read with Paddle's own names for it."""
    model, optimizer = step.model, step.optimizer
    names = {p.name: name for name, p in model.named_parameters()}
    rate = optimizer._learning_rate
    return {
        "step": step.state_dict(),
        "weights": {name: bits(x) for name, x in model.state_dict().items()},
        "slots": {
            (slot, names[parameter]): bits(x)
            for slot, by_parameter in optimizer._accumulators.items()
            for parameter, x in by_parameter.items()
        },
        "rate": optimizer.get_lr(),
        "scheduler": None if isinstance(rate, float) else rate.state_dict(),
    }


def goes_on(make: Callable[[], amp.TrainStep], path: Path, used: int) -> None:
    """Save after 5 of 10 steps, load into a target that has made ``used`` others."""
    uninterrupted = make()
    train(uninterrupted, 0, 5)
    uninterrupted.save(path)
    saved = everything(uninterrupted)
    results = train(uninterrupted, 5, 10)
    assert {applied for _, _, applied in results} == {True, False}

    nn.Linear(2, 2)  # Paddle's counters go on, so that names of tensors and slots are others
    resumed = make()
    train(resumed, 100, 100 + used)
    resumed.load(path)
    assert everything(resumed) == saved
    assert train(resumed, 5, 10) == results
    assert everything(resumed) == everything(uninterrupted)


@pytest.mark.parametrize("used", [0, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_goes_on_bit_by_bit(tmp_path: Path, optimizer: str, used: int) -> None:
    policy = "O2:bfloat16" if used else "O1"
    goes_on(lambda: make_step(OPTIMIZERS[optimizer], policy), tmp_path, used)


@pytest.mark.parametrize("used", [0, 3])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("optimizer", ["Momentum", "Adam"])
def test_every_policy_goes_on_bit_by_bit(
    tmp_path: Path, optimizer: str, policy: str, used: int
) -> None:
    goes_on(lambda: make_step(OPTIMIZERS[optimizer], POLICIES[policy]), tmp_path, used)


def test_a_schedule_goes_on_bit_by_bit(tmp_path: Path) -> None:
    plan = amp.Schedule([(0, Policy("O2", "bfloat16")), (7, Policy("O1"))])
    goes_on(lambda: make_step(policy=plan), tmp_path, used=3)


def test_accumulation_and_clipping_go_on_bit_by_bit(tmp_path: Path) -> None:
    def make() -> amp.TrainStep:
        return make_step(accumulate=2, on_overflow="drop_microbatch", clip_norm=0.5)

    uninterrupted, resumed = make(), make()
    train(uninterrupted, 0, 5)  # one of them dropped
    uninterrupted.save(tmp_path)
    resumed.load(tmp_path)
    assert train(resumed, 7, 12) == train(uninterrupted, 7, 12)
    assert everything(resumed) == everything(uninterrupted)


def test_a_compiled_step_goes_on_bit_by_bit(tmp_path: Path) -> None:
    goes_on(lambda: make_step(compile=True), tmp_path, used=2)


@pytest.mark.parametrize("optimizer", ["Adam", "Momentum, merged"])
def test_a_skipped_first_step_leaves_nothing_in_the_optimizer(
    tmp_path: Path, optimizer: str
) -> None:
    """Before there are slots, a checkpoint has none, and takes those of a used target away."""
    step = make_step(OPTIMIZERS[optimizer])
    train(step, 2, 3)
    step.save(tmp_path)
    saved, results = everything(step), train(step, 3, 6)
    used = make_step(OPTIMIZERS[optimizer])
    train(used, 10, 14)
    used.load(tmp_path)
    assert everything(used) == saved
    assert saved["slots"] == {}
    assert train(used, 3, 6) == results
    assert everything(used) == everything(step)


# -- rates

SCHEDULERS: Mapping[str, Callable[[], Any]] = {
    "step decay": lambda: lr.StepDecay(0.01, 3),
    "noam": lambda: lr.NoamDecay(8, 5),
    "multiplicative": lambda: lr.MultiplicativeDecay(0.01, lambda epoch: 0.9),
    "cosine": lambda: lr.CosineAnnealingDecay(0.01, 4),
    "one cycle": lambda: lr.OneCycleLR(0.01, 20),
    "cyclic": lambda: lr.CyclicLR(0.001, 0.01, 3),
    "warmup to cosine": lambda: lr.LinearWarmup(lr.CosineAnnealingDecay(0.01, 4), 3, 0.0, 0.01),
}


@pytest.mark.filterwarnings("ignore:There are some unused values:UserWarning")  # LinearWarmup's own
@pytest.mark.parametrize("by_step", [True, False], ids=["train_step's", "the optimizer's alone"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_go_on(tmp_path: Path, name: str, by_step: bool) -> None:
    def make() -> amp.TrainStep:
        scheduler = SCHEDULERS[name]()
        return make_step(rate=scheduler, scheduler=scheduler if by_step else None)

    def run(step: amp.TrainStep, first: int, last: int) -> None:
        for number in range(first, last):
            train(step, number, number + 1)
            if not by_step:
                step.optimizer._learning_rate.step()

    uninterrupted, resumed = make(), make()
    run(uninterrupted, 0, 5)
    uninterrupted.save(tmp_path)
    run(resumed, 10, 12)
    resumed.load(tmp_path)
    assert resumed.optimizer.get_lr() == uninterrupted.optimizer.get_lr()
    run(uninterrupted, 5, 10)
    run(resumed, 5, 10)
    assert everything(resumed) == everything(uninterrupted)


@pytest.mark.parametrize("kind", [float, np.float32, lambda x: np.array([x], np.float32)])
def test_the_best_so_far_goes_on(tmp_path: Path, kind: Any) -> None:
    """ReduceOnPlateau keeps the number that it was given, as it was given."""
    first, second = (make_step(rate=lr.ReduceOnPlateau(0.5, patience=1)) for _ in range(2))
    plateau = first.optimizer._learning_rate
    for loss in (0.75, 1.0):
        plateau.step(kind(loss))
    first.save(tmp_path)
    second.load(tmp_path)
    restored = second.optimizer._learning_rate
    assert (restored.best, restored.num_bad_epochs) == (0.75, 1)
    restored.step(1.0)
    assert second.optimizer.get_lr() == pytest.approx(0.05)


def test_a_rate_that_was_set_goes_on(tmp_path: Path) -> None:
    step, other = make_step(), make_step()
    train(step, 0, 2)
    step.optimizer.set_lr(0.1)
    step.save(tmp_path)
    train(other, 0, 1)  # Paddle keeps a copy of the rate as a tensor since
    other.load(tmp_path)
    assert other.optimizer.get_lr() == 0.1
    train(step, 3, 5)
    train(other, 3, 5)
    assert everything(other) == everything(step)


def test_a_rate_does_not_load_into_a_scheduler_and_the_reverse(tmp_path: Path) -> None:
    make_step().save(tmp_path / "number")
    make_step(rate=lr.StepDecay(0.01, 3)).save(tmp_path / "scheduler")
    with pytest.raises(amp.StateError, match="lr="):
        make_step(rate=lr.StepDecay(0.01, 3)).load(tmp_path / "number")
    with pytest.raises(amp.StateError, match="lr="):
        make_step().load(tmp_path / "scheduler")


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_the_factor_of_a_weight_s_rate_goes_on(tmp_path: Path, factor: float) -> None:
    step, other = make_step(), make_step()
    step.model.head.weight.optimize_attr["learning_rate"] = factor
    other.model.head.weight.optimize_attr["learning_rate"] = 3.0
    step.save(tmp_path)
    other.load(tmp_path)
    assert other.model.head.weight.optimize_attr["learning_rate"] == factor


def test_a_weight_whose_rate_has_no_factor_goes_on(tmp_path: Path) -> None:
    """Paddle steps it with the rate itself."""
    step, other = make_step(), make_step()
    for each in (step, other):
        each.model.head.weight.optimize_attr = {}
    train(step, 0, 2)
    step.save(tmp_path)
    other.load(tmp_path)
    train(step, 3, 5)
    train(other, 3, 5)
    assert everything(other) == everything(step)


def grouped(rate: float, weight_decay: float) -> amp.TrainStep:
    model = Net()
    head = model.head.parameters()
    rest = [p for p in model.parameters() if p is not head[0]]
    groups = [{"params": rest}, {"params": head, "learning_rate": rate, "weight_decay": 0.5}]
    optimizer = paddle.optimizer.AdamW(0.01, parameters=groups, weight_decay=weight_decay)
    return amp.train_step(loss_fn, model, optimizer, policy="O1")


@pytest.mark.parametrize(
    "change, says",
    [
        ({"unheard_of": 1.0}, "are not the optimizer's"),
        ({"weight_decay": None}, "is no finite number"),
    ],
    ids=str,
)
def test_groups_of_other_settings_do_not_fit(
    tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    step, other = grouped(0.25, 0.1), grouped(1.0, 0.2)
    step.save(tmp_path)
    state, tensors = checkpoint.read(tmp_path)
    state["optimizer"]["groups"][1] |= change
    checkpoint.write(tmp_path, checkpoint.Checkpoint(state, tensors))
    before = [dict(group) for group in other.optimizer._param_groups]
    with pytest.raises(amp.StateError, match=says):
        other.load(tmp_path)
    present = [dict(group) for group in other.optimizer._param_groups]
    assert all(is_.keys() == was.keys() for is_, was in zip(present, before, strict=True))
    assert present[1]["weight_decay"] == 0.5


def test_a_rate_of_nothing_is_a_rate(tmp_path: Path) -> None:
    step, other = make_step(), make_step()
    step.optimizer.set_lr(0.0)
    step.save(tmp_path)
    other.load(tmp_path)
    assert other.optimizer.get_lr() == 0.0


def test_groups_go_on(tmp_path: Path) -> None:
    step, other = grouped(0.25, 0.1), grouped(1.0, 0.2)
    step.optimizer._param_groups[0]["weight_decay"] = 0.3
    train(step, 0, 4)
    step.save(tmp_path)
    other.load(tmp_path)
    assert other.optimizer._param_groups[0]["weight_decay"] == 0.3
    assert other.model.head.weight.optimize_attr["learning_rate"] == 0.25
    train(step, 4, 8)
    train(other, 4, 8)
    assert everything(other) == everything(step)


# -- names


def test_names_are_the_model_s_own() -> None:
    step = make_step()
    train(step, 0, 1)
    slots = training_state.read_optimizer(step.optimizer, step.model).slots
    assert "inner.weight/moment1" in slots
    assert {name.rpartition("/")[0] for name in slots} == {
        name
        for name, p in step.model.named_parameters()
        if not p.stop_gradient and not name.startswith("idle.")
    }


def test_an_optimizer_s_name_is_no_part_of_its_slots_names() -> None:
    step = make_step(OPTIMIZERS["AdamW"])
    train(step, 0, 1)
    assert {name.partition("_")[0] for name in step.optimizer._accumulators} == {"mine"}
    slots = training_state.read_optimizer(step.optimizer, step.model).slots
    assert {name.rpartition("/")[2] for name in slots} == {
        "moment1",
        "moment2",
        "beta1_pow_acc",
        "beta2_pow_acc",
    }


def test_weights_are_what_state_dict_saves() -> None:
    model = Net()
    model.head.weight = model.table.weight = paddle.create_parameter([8, 8], "float32")
    expected = [name for name in model.state_dict() if name != "head.weight"]
    assert sorted(w.name for w in training_state.weights(model)) == sorted(expected)


def test_tied_weights_are_saved_once_and_stay_tied(tmp_path: Path) -> None:
    def make() -> amp.TrainStep:
        model = nn.Sequential(nn.Linear(36, 36), nn.ReLU(), nn.Linear(36, 36), nn.Linear(36, 3))
        model[2].weight = model[0].weight
        return make_step(model=nn.Sequential(nn.Flatten(), *model))

    step, other = make(), make()
    train(step, 0, 3)
    step.save(tmp_path)
    names = list(checkpoint.read(tmp_path).tensors)
    assert "weights/1.weight" in names
    assert "weights/3.weight" not in names
    other.load(tmp_path)
    assert other.model[1].weight is other.model[3].weight
    train(step, 3, 5)
    train(other, 3, 5)
    assert everything(other) == everything(step)


def test_data_parallel_has_the_names_of_what_it_wraps(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="single-card"):
        parallel = paddle.DataParallel(Net())
    wrapped, plain = make_step(model=parallel), make_step()
    names = [name for name, p in plain.model.named_parameters() if not p.stop_gradient]
    assert training_state.parameter_names(parallel) == names
    train(wrapped, 0, 3)
    wrapped.save(tmp_path)
    plain.load(tmp_path)
    train(wrapped, 3, 5)
    train(plain, 3, 5)
    state = parallel._layers.state_dict()
    assert {n: bits(x) for n, x in state.items()} == everything(plain)["weights"]


def test_recurrent_layers() -> None:
    """Their weights share memory, and they hold a buffer that has none yet."""
    one, other = (nn.LSTM(3, 4, num_layers=2, dropout=0.5) for _ in range(2))
    one.eval()
    other.eval()
    training_state.write_weights(other, training_state.read_weights(one))
    x = paddle.to_tensor(normal(2, 5, 3))
    assert bits(one(x)[0]) == bits(other(x)[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_weights_are_float32_in_a_checkpoint(dtype: str) -> None:
    one, other = (nn.Linear(4, 4).to(dtype=dtype) for _ in range(2))
    values = training_state.read_weights(one)
    assert {array.dtype for array in values.values()} == {np.dtype(np.float32)}
    training_state.write_weights(other, values)
    assert bits(other.weight) == bits(one.weight)
    assert str(other.weight.dtype) == f"paddle.{dtype}"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_float32_weights_are_rounded_exactly_into_16_bit_ones(dtype: str) -> None:
    """Paddle's own cast on CPU makes 6e-5 of the first."""
    layer = nn.Linear(3, 1, bias_attr=False).to(dtype=dtype)
    values = np.float32([[3.3e-24], [1 + 2**-11], [-1 - 3 * 2**-11]])
    training_state.write_weights(layer, {"weight": values})
    got = training_state.read_weights(layer)["weight"]
    assert np.array_equal(got, rounded(values, dtype))


def test_weights_of_other_dtypes() -> None:
    layer = nn.Linear(2, 2).to(dtype="float64")
    layer.register_buffer("count", paddle.to_tensor(2**40 + 1))
    layer.register_buffer("mask", paddle.to_tensor([True, False]))
    values = training_state.read_weights(layer)
    assert [str(values[name].dtype) for name in ("weight", "count", "mask")] == [
        "float64",
        "int64",
        "bool",
    ]
    before = {name: bits(x) for name, x in layer.state_dict().items()}
    training_state.write_weights(layer, {name: np.zeros_like(v) for name, v in values.items()})
    assert not layer.mask.any()
    training_state.write_weights(layer, values)
    assert {name: bits(x) for name, x in layer.state_dict().items()} == before


def test_weights_loaded_without_masters_are_rounded() -> None:
    """The storage is in low precision there, whatever is written to it."""
    step = make_step(policy=POLICIES["O2 without masters"])
    train(step, 0, 1)
    values = {name: array + 2**-13 for name, array in training_state.read_weights(Net()).items()}
    training_state.write_weights(step.model, values)
    inner = step.model.inner.weight
    assert low_dtype_of(inner) == "float16"
    assert not is_representable(values["inner.weight"], "float16")
    assert is_representable(inner.numpy(), "float16")


# -- what is refused


def test_an_optimizer_that_remembers_more_is_refused(tmp_path: Path) -> None:
    model = Net()

    class Own(paddle.optimizer.Optimizer):
        pass

    step = amp.train_step(loss_fn, model, Own(0.1, parameters=model.parameters()), policy="O0")
    with pytest.raises(amp.UnsupportedError, match="What a Own remembers is not known"):
        step.save(tmp_path)


def test_a_state_that_waits_for_the_first_step_is_refused(tmp_path: Path) -> None:
    step, other = make_step(), make_step()
    train(step, 0, 1)
    other.optimizer.set_state_dict(step.optimizer.state_dict())
    with pytest.raises(amp.UnsupportedError, match="takes over in its first step"):
        other.save(tmp_path)
    step.save(tmp_path)
    with pytest.raises(amp.UnsupportedError, match="takes over in its first step"):
        other.load(tmp_path)


def test_masters_of_others_are_refused(tmp_path: Path) -> None:
    step = make_step()
    name = step.model.inner.weight.name
    step.optimizer._master_weights[name] = paddle.zeros([64, 8])
    with pytest.raises(amp.UnsupportedError, match=r"masters that amp\.decorate did not make"):
        step.save(tmp_path)


def changed(path: Path, key: str, value: Any) -> None:
    """The checkpoint with one array, or one of the optimizer's settings, that is another."""
    state, tensors = checkpoint.read(path)
    if isinstance(value, np.ndarray):
        tensors = {**tensors, key: value}
    elif value is None:
        tensors = {name: array for name, array in tensors.items() if name != key}
    else:
        state["optimizer"][key] = value
    checkpoint.write(path, checkpoint.Checkpoint(state, tensors))


@pytest.mark.parametrize(
    "key, value, said",
    [
        ("optimizer/inner.weight/moment1", np.zeros([2], np.float32), "moment1"),
        ("optimizer/inner.weight/moment1", np.zeros([64, 8], np.float64), "moment1"),
        ("optimizer/inner.weight/moment1", None, "has the slots"),
        ("optimizer/inner.weight/moment3", np.zeros([2], np.float32), "has the slots"),
        ("optimizer/nothing/moment1", np.zeros([2], np.float32), "slots of no parameter"),
        ("lr", "fast", "lr='fast' is no finite number"),
        ("lr", True, "lr=True is no rate"),
        ("lr", -1.0, "lr=-1.0 is no rate"),
        ("lr_of_weights", {"nothing": 2.0}, "is of other weights"),
        ("lr_of_weights", {"inner.weight": "fast"}, "is no finite number"),
        ("groups", [{}], "are not the optimizer's"),
        ("groups", 3, "are not the optimizer's"),
        ("rounded_by_chance", -1, "rounded_by_chance=-1 is no count"),
        ("rounded_by_chance", True, "rounded_by_chance=True is no count"),
    ],
)
def test_what_does_not_fit_changes_nothing(tmp_path: Path, key: str, value: Any, said: str) -> None:
    step, other = make_step(), make_step()
    train(step, 0, 3)
    train(other, 0, 2)
    step.save(tmp_path)
    changed(tmp_path, key, value)
    before = everything(other)
    with pytest.raises(amp.StateError, match=said):
        other.load(tmp_path)
    assert everything(other) == before


@pytest.mark.parametrize(
    ("key", "value"), [("last_epoch", "x"), ("last_epoch", [3]), ("last_lr", True)]
)
def test_an_impossible_state_of_a_rate_s_scheduler_changes_nothing(
    tmp_path: Path, key: str, value: Any
) -> None:
    step, other = (make_step(rate=lr.StepDecay(0.01, 3)) for _ in range(2))
    train(step, 0, 3)
    train(other, 0, 2)
    step.save(tmp_path)
    state = lr.StepDecay(0.01, 3).state_dict()
    assert key in state
    changed(tmp_path, "lr", {**state, key: value})
    before = everything(other)
    with pytest.raises(amp.StateError, match=f"{key}="):
        other.load(tmp_path)
    assert everything(other) == before


class Noting(lr.LRScheduler):
    """A scheduler that remembers something besides."""

    def __init__(self, noted: Any) -> None:
        self.noted = noted
        super().__init__(0.01)

    def get_lr(self) -> float:
        return 0.01

    def state_keys(self) -> None:
        self.keys = ["last_epoch", "last_lr", "noted"]


@pytest.mark.parametrize(
    "present, saved, other",
    [
        (False, True, 1.0),
        (None, 0.5, "a text"),  # the best loss so far, of ReduceOnPlateau
        (0.5, None, True),
        (0.5, 1, "a text"),
        (1, 0.5, [1]),
        ("a text", "another", 1.0),
    ],
)
def test_what_a_rate_s_scheduler_remembers_goes_on(
    tmp_path: Path, present: Any, saved: Any, other: Any
) -> None:
    """Numbers are one kind, and None is of them."""
    saving, loading = make_step(rate=Noting(saved)), make_step(rate=Noting(present))
    saving.save(tmp_path)
    loading.load(tmp_path)
    assert loading.optimizer._learning_rate.noted == saved
    loading.optimizer._learning_rate.noted = present
    changed(tmp_path, "lr", {**Noting(saved).state_dict(), "noted": other})
    with pytest.raises(amp.StateError, match="noted="):
        loading.load(tmp_path)
    assert loading.optimizer._learning_rate.noted == present


@pytest.mark.parametrize(
    "inner",
    [{"last_epoch": "x", "last_lr": 0.01}, {"last_lr": 0.01}, "a text", None],
    ids=["of another kind", "missing", "a text", "none"],
)
def test_an_impossible_state_of_a_scheduler_in_a_scheduler_changes_nothing(
    tmp_path: Path, inner: Any
) -> None:
    def rate() -> lr.LRScheduler:
        return lr.LinearWarmup(lr.StepDecay(0.01, 3), 2, 0.001, 0.01)

    step, other = make_step(rate=rate()), make_step(rate=rate())
    train(step, 0, 3)
    train(other, 0, 2)
    step.save(tmp_path)
    state = rate().state_dict()
    assert state["LinearWarmup_LR"].keys() == {"last_epoch", "last_lr"}
    changed(tmp_path, "lr", {**state, "LinearWarmup_LR": inner})
    before = everything(other)
    with pytest.raises(amp.StateError, match="LinearWarmup_LR="):
        other.load(tmp_path)
    assert everything(other) == before


@pytest.mark.parametrize("target", ["SGD", "Momentum", "RMSProp"])
def test_another_optimizer_s_slots_do_not_fit(tmp_path: Path, target: str) -> None:
    step, other = make_step(), make_step(OPTIMIZERS[target])
    train(step, 0, 1)
    step.save(tmp_path)
    before = everything(other)
    with pytest.raises(amp.StateError, match="has the slots"):
        other.load(tmp_path)
    assert everything(other) == before


# -- weights of another framework


def numpy_checkpoint(model: numpy_nn.Module, path: Path) -> None:
    optimizer = numpy_optim.SGD(model.parameters(), 0.1)
    amp.train_step(lambda model, x: model(x).sum(), model, optimizer, policy="O0").save(path)


def paddle_checkpoint(model: nn.Layer, path: Path) -> None:
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    amp.train_step(lambda model, x: model(x).sum(), model, optimizer, policy="O0").save(path)


def randomized(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Positive, as a variance has to be, and of no structure."""
    rng = np.random.default_rng(4)
    return {
        name: rng.uniform(0.1, 1.0, array.shape).astype(np.float32)
        for name, array in values.items()
    }


class NumpyConvNet(numpy_nn.Module):
    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.first, self.norm = numpy_nn.Conv2d(1, 4, 3, rng=rng), numpy_nn.BatchNorm2d(4)
        self.second = numpy_nn.Conv2d(4, 4, 3, padding=1, rng=rng)
        self.head = numpy_nn.Linear(64, 3, rng=rng)

    def forward(self, x: Any) -> Any:
        hidden = numpy_nn.relu(self.second(numpy_nn.relu(self.norm(self.first(x)))))
        return self.head(numpy_nn.flatten(hidden))


class PaddleConvNet(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (
            nn.Conv2D(1, 4, 3),
            nn.BatchNorm2D(4),
            nn.Conv2D(4, 4, 3, padding=1),
        )
        self.d = nn.Linear(64, 3)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        relu = nn.functional.relu
        return self.d(relu(self.c(relu(self.b(self.a(x))))).flatten(1))


def numpy_sequence(*layers: type) -> numpy_nn.Module:
    rng = np.random.default_rng(0)
    linear, embedding = numpy_nn.Linear, numpy_nn.Embedding
    return numpy_nn.Sequential(
        *(
            embedding(7, 4, rng=rng)
            if kind is embedding
            else linear(4, 4, rng=rng)
            if kind is linear
            else kind(4)
            for kind in layers
        )
    )


TOKENS = np.array([[1, 2, 6], [0, 0, 3]])

PAIRS: Mapping[str, tuple[Callable[[], Any], Callable[[], Any], np.ndarray]] = {
    "perceptron": (
        lambda: numpy_sequence(numpy_nn.Linear, numpy_nn.Linear, numpy_nn.Linear),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)),
        normal(5, 4),
    ),
    "conv net with batch norm": (NumpyConvNet, PaddleConvNet, IMAGES),
    "embedding and layer norm": (
        lambda: numpy_sequence(numpy_nn.Embedding, numpy_nn.LayerNorm, numpy_nn.Linear),
        lambda: nn.Sequential(nn.Embedding(7, 4), nn.LayerNorm(4), nn.Linear(4, 4)),
        TOKENS,
    ),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_numpy_s_weights_in_paddle_and_back(tmp_path: Path, pair: str) -> None:
    make_numpy, make_paddle, x = PAIRS[pair]
    source, target, back = make_numpy().eval(), make_paddle(), make_numpy().eval()
    backend = amp.backend("numpy")
    backend.write_weights(source, randomized(backend.read_weights(source)))
    target.eval()
    numpy_checkpoint(source, tmp_path / "numpy")
    report = amp.load_weights(tmp_path / "numpy", target)
    assert len(report) == len(target.state_dict())
    assert np.allclose(target(paddle.to_tensor(x)).numpy(), source(x), rtol=1e-5, atol=1e-5)

    paddle_checkpoint(target, tmp_path / "paddle")
    amp.load_weights(tmp_path / "paddle", back)
    original = backend.read_weights(source)
    for name, array in backend.read_weights(back).items():
        assert array.tobytes() == original[name].tobytes()


class Attending(nn.Layer):
    """A perceptron with a table of places, as a Swin transformer's attention has it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = PAIRS["perceptron"][1]()
        self.register_buffer("relative_position_index", paddle.arange(9).reshape([3, 3]))

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.body(x)


def test_whole_numbers_of_a_buffer_do_not_stand_in_the_way(tmp_path: Path) -> None:
    source, target, back = Attending(), PAIRS["perceptron"][0](), Attending()
    x = normal(5, 4)
    paddle_checkpoint(source, tmp_path / "paddle")
    report = amp.load_weights(tmp_path / "paddle", target)
    assert [weight.name for weight in report.unused] == ["relative_position_index"]
    assert np.allclose(target(x), source(paddle.to_tensor(x)).numpy(), rtol=1e-5, atol=1e-5)
    numpy_checkpoint(target, tmp_path / "numpy")
    report = amp.load_weights(tmp_path / "numpy", back)
    assert [weight.name for weight in report.kept] == ["relative_position_index"]
    assert back.relative_position_index.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert np.array_equal(back(paddle.to_tensor(x)), source(paddle.to_tensor(x)))


def test_numpy_s_weights_in_a_decorated_model(tmp_path: Path) -> None:
    make_numpy, make_paddle, _ = PAIRS["perceptron"]
    source, target = make_numpy(), make_paddle()
    numpy_checkpoint(source, tmp_path)
    amp.decorate(target, policy="O2:bfloat16")
    amp.load_weights(tmp_path, target)
    amp.undecorate(target)
    values = [p.numpy() for p in target.parameters()]
    assert all(np.array_equal(a, b) for a, b in zip(values, source.parameters(), strict=True))


@pytest.mark.parametrize(
    "layer, expected",
    [
        (nn.Linear(3, 4), {"weight": ("dense.kernel", "io"), "bias": ("dense.bias", "o")}),
        (nn.Conv1D(4, 6, 3), {"weight": ("conv.kernel", "oiw"), "bias": ("conv.bias", "o")}),
        (nn.Conv2D(1, 6, 3), {"weight": ("conv.kernel", "oihw"), "bias": ("conv.bias", "o")}),
        (
            nn.Conv3D(4, 6, 3, groups=2),
            {"weight": ("conv.kernel", "oidhw"), "bias": ("conv.bias", "o")},
        ),
        (
            nn.Conv2D(4, 4, 3, groups=4),
            {"weight": ("depthwise_conv.kernel", "cmhw"), "bias": ("conv.bias", "o")},
        ),
        (
            nn.Conv2D(4, 8, 3, groups=4),
            {"weight": ("conv.kernel", "oihw"), "bias": ("conv.bias", "o")},
        ),
        (
            nn.Conv2DTranspose(4, 6, 3),
            {"weight": ("conv_transpose.kernel", "iohw"), "bias": ("conv.bias", "o")},
        ),
        (nn.Embedding(5, 2), {"weight": ("embedding.table", "no")}),
        (
            nn.InstanceNorm2D(4),
            {"scale": ("norm.scale", "c"), "bias": ("norm.offset", "c")},
        ),
        (
            nn.BatchNorm1D(4),
            {
                "weight": ("norm.scale", "c"),
                "bias": ("norm.offset", "c"),
                "_mean": ("norm.mean", "c"),
                "_variance": ("norm.variance", "c"),
            },
        ),
        (nn.PReLU(3), {"_weight": ("other._weight", "a")}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Layer) else "",
)
def test_roles(layer: nn.Layer, expected: dict[str, tuple[str, str]]) -> None:
    found = {w.name: (w.role, w.axes) for w in training_state.weights(layer)}
    assert found == expected
    assert all(
        w.shape == tuple(layer.state_dict()[w.name].shape) for w in training_state.weights(layer)
    )


def test_axes_mean_what_they_say() -> None:
    """Every layer computes what its kernel's axes say, by einsum over the windows."""
    x = normal(2, 4, 5)
    conv = nn.Conv1D(4, 6, 5, bias_attr=False)
    kernel = training_state.read_weights(conv)["weight"]
    got = conv(paddle.to_tensor(x)).numpy()[:, :, 0]
    assert np.allclose(got, np.einsum("biw,oiw->bo", x, kernel), atol=1e-5)
    transposed = nn.Conv1DTranspose(4, 6, 3, bias_attr=False)
    kernel = training_state.read_weights(transposed)["weight"]
    point = normal(2, 4, 1)
    got = transposed(paddle.to_tensor(point)).numpy()
    assert np.allclose(got, np.einsum("bix,iow->bow", point, kernel), atol=1e-5)
