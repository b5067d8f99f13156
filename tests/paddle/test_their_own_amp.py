"""What Paddle's own tests check of its AMP (``test/amp``, ``test_imperative_auto_mixed_precision``), of ours.

Rewritten with our names. docs/limits.md ("Where a loop by hand differs") and the tests at the end show
the differences by design.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
from paddle_native_scaler import native_scaler

import ampbridge as amp

pytestmark = pytest.mark.filterwarnings("ignore::ampbridge.errors.SimulationWarning")


def conv() -> paddle.nn.Conv2D:
    paddle.seed(5)
    return paddle.nn.Conv2D(3, 2, 3, bias_attr=False)


def image() -> paddle.Tensor:
    return paddle.to_tensor(np.random.default_rng(3).normal(size=(1, 3, 32, 32)).astype(np.float32))


def sgd(layer: paddle.nn.Layer) -> paddle.optimizer.Optimizer:
    return paddle.optimizer.SGD(0.01, parameters=layer.parameters())


def is_low(x: paddle.Tensor, dtype: str = "float16") -> bool:
    """Whether each value is one of ``dtype``'s; float32's own random ones are not."""
    rounded = x.astype(dtype).astype("float32")
    return bool((x.astype("float32") == rounded).all())


# -- test_amp_list, test_amp_promote, auto_cast


def test_auto_cast_runs_a_convolution_low_and_a_mean_high() -> None:
    model, x = conv(), image()
    with amp.autocast(amp.Policy("O1", lists="paddle"), "paddle"):
        out = model(x)
        mean = paddle.mean(out, axis=-1)
    assert is_low(out)
    assert not is_low(model(x))
    assert not is_low(mean)


def test_regions_nest_and_end() -> None:
    model, x = conv(), image()
    with amp.autocast("O1", "paddle"):
        with amp.autocast("O0", "paddle"):
            assert not is_low(model(x))
        assert is_low(model(x))
    assert not is_low(model(x))


def test_a_custom_black_list() -> None:
    with amp.autocast(amp.Policy("O1", deny=["paddle:conv2d"]), "paddle"):
        assert not is_low(conv()(image()))


def test_a_custom_white_list() -> None:
    x = image()
    with amp.autocast(amp.Policy("O1", allow=["paddle:elementwise_mul"]), "paddle"):
        assert is_low(x * 1.0001)


def test_an_op_in_both_lists_is_refused() -> None:
    with pytest.raises(ValueError, match="both allow and deny"):
        amp.Policy("O1", allow=["paddle:conv2d"], deny=["paddle:conv2d"])


@pytest.mark.parametrize("level", ["O3", "o1", ""])
def test_a_level_that_is_none(level: Any) -> None:
    with pytest.raises(ValueError, match="Passed level="):
        amp.Policy(level)


def test_a_dtype_that_is_none() -> None:
    with pytest.raises(ValueError, match="Passed dtype="):
        amp.Policy("O1", "int8")


# -- TestAmpScaler


def test_scale() -> None:
    data = paddle.rand([10, 1024])
    scaled = amp.GradScaler(1024.0).scale(data)
    assert (scaled.numpy() == data.numpy() * 1024).all()


def trained(loop: Callable[..., None], scaler: amp.GradScaler | None) -> np.ndarray:
    model = conv()
    optimizer = sgd(model)
    loop(optimizer, model(image()).mean(), scaler)
    return np.array(model.weight.numpy())


def plainly(optimizer: Any, loss: Any, scaler: Any) -> None:
    loss.backward()
    optimizer.step()


def by_minimize(optimizer: Any, loss: Any, scaler: Any) -> None:
    scaled = scaler.scale(loss)
    scaled.backward()
    scaler.minimize(optimizer, scaled)


def by_step_and_update(optimizer: Any, loss: Any, scaler: Any) -> None:
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def by_unscale(optimizer: Any, loss: Any, scaler: Any) -> None:
    scaler.scale(loss).backward()
    scaler.unscale(optimizer)
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("loop", [by_minimize, by_step_and_update, by_unscale])
@pytest.mark.parametrize("enabled", [True, False])
def test_a_scaled_loop_is_the_plain_one(loop: Callable[..., None], enabled: bool) -> None:
    scaler = amp.GradScaler(1024.0, enabled=enabled)
    np.testing.assert_allclose(trained(loop, scaler), trained(plainly, None), rtol=1e-6)


def test_nan_or_inf_leaves_the_parameters() -> None:
    model, scaler = conv(), amp.GradScaler(1024.0)
    optimizer, before = sgd(model), model.weight.numpy()
    x = image()
    x[0, 0, 0, 0] = np.nan
    by_minimize(optimizer, model(x).mean(), scaler)
    assert (model.weight.numpy() == before).all()
    assert scaler.get_scale() == 512.0


def twice(name: str, update_between: bool) -> Callable[..., None]:
    def run(scaler: amp.GradScaler, optimizer: Any) -> None:
        getattr(scaler, name)(optimizer)
        if update_between:
            scaler.update()
        getattr(scaler, name)(optimizer)

    return run


def unscale_after_step(scaler: amp.GradScaler, optimizer: Any) -> None:
    scaler.step(optimizer)
    scaler.unscale(optimizer)


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        (twice("step", False), r"step\(\) of this optimizer has been called already"),
        (twice("unscale", False), r"after unscale\(\)"),
        (unscale_after_step, r"after step\(\)"),
    ],
)
def test_step_update_exception(calls: Callable[..., None], text: str) -> None:
    model, scaler = conv(), amp.GradScaler(1024.0)
    scaler.scale(model(image()).mean()).backward()
    with pytest.raises(RuntimeError, match=text):
        calls(scaler, sgd(model))


def test_step_and_update_over_again() -> None:
    model, scaler = conv(), amp.GradScaler(1024.0)
    scaler.scale(model(image()).mean()).backward()
    twice("step", True)(scaler, sgd(model))


# -- TestGradScalerStateDict


def test_training_goes_on_from_a_state_dict() -> None:
    def steps(model: Any, scaler: amp.GradScaler, count: int) -> list[float]:
        optimizer, losses = sgd(model), []
        for _ in range(count):
            with amp.autocast("O1", "paddle"):
                loss = model(image()).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.clear_grad()
            losses.append((loss.item(), scaler.get_scale()))
        return losses

    settings = {"growth_factor": 3.0, "backoff_factor": 0.25, "growth_interval": 2}
    whole = steps(conv(), amp.GradScaler(64.0, **settings), 6)
    model, scaler = conv(), amp.GradScaler(64.0, **settings)
    head, other = steps(model, scaler, 3), amp.GradScaler()
    other.load_state_dict(scaler.state_dict())
    assert head + steps(model, other, 3) == whole


def test_their_state_dict_is_read() -> None:
    theirs = native_scaler(init_loss_scaling=512.0, incr_ratio=3.0, decr_every_n_nan_or_inf=2)
    ours = amp.GradScaler()
    ours.load_state_dict(theirs.state_dict())
    assert (ours.get_scale(), ours.config.growth_factor, ours.config.backoff_interval) == (
        512,
        3,
        2,
    )


# -- test_grad_scaler_out: what the settings are called


def test_default_values() -> None:
    ours = amp.GradScaler()
    config = ours.config
    assert (ours.enabled, ours.get_scale(), config.dynamic) == (True, 2.0**16, True)
    assert (config.growth_factor, config.backoff_factor) == (2.0, 0.5)
    assert (config.growth_interval, config.backoff_interval) == (2000, 1)


def test_positional_arguments() -> None:
    ours = amp.GradScaler(1024.0, 3.0, 0.25, 500, 2)
    config = ours.config
    assert (ours.get_scale(), config.growth_factor, config.backoff_factor) == (1024.0, 3.0, 0.25)
    assert (config.growth_interval, config.backoff_interval) == (500, 2)


PADDLES_NAMES = {
    "enable": (True, "enabled="),
    "init_loss_scaling": (1024.0, "init_scale="),
    "incr_ratio": (3.0, "growth_factor="),
    "decr_ratio": (0.25, "backoff_factor="),
    "incr_every_n_steps": (500, "growth_interval="),
    "decr_every_n_nan_or_inf": (2, "backoff_interval="),
    "use_dynamic_loss_scaling": (True, "dynamic="),
    "device": ("gpu", "GradScaler"),
}


@pytest.mark.parametrize("name", PADDLES_NAMES)
def test_paddle_s_names_are_told_of(name: str) -> None:
    value, ours = PADDLES_NAMES[name]
    with pytest.raises(amp.ArgumentTypeError, match=rf"(?s)no argument '{name}'.*Hint: .*{ours}"):
        amp.GradScaler(**{name: value})


@pytest.mark.parametrize("name", ["custom_white_list", "custom_black_list", "enable", "level"])
def test_auto_cast_s_names_are_told_of(name: str) -> None:
    with pytest.raises(amp.ArgumentTypeError, match=rf"(?s)no argument '{name}'.*Hint: "):
        amp.autocast(**{name: True})


def test_paddle_s_accessors_are_told_of() -> None:
    public = {name for name in dir(paddle.amp.GradScaler) if not name.startswith("_")}
    ours = amp.GradScaler()
    assert {"is_enable", "set_incr_ratio", "unscale_"} <= public
    for name in public - set(dir(ours)):
        with pytest.raises(amp.ForeignNameError, match=rf"(?s){name}.*Hint: scaler\."):
            getattr(ours, name)


# -- test_amp_decorate, test_amp_master_weight


def test_decorate_gives_back_what_it_was_given() -> None:
    model = conv()
    optimizer = sgd(model)
    assert amp.decorate(model, optimizer, "O2") == (model, optimizer)
    assert amp.decorate(other := conv(), policy="O2") is other


@pytest.mark.parametrize("wrong", [None, 3, "model"])
def test_decorate_of_what_is_no_layer(wrong: Any) -> None:
    with pytest.raises((TypeError, LookupError)):
        amp.decorate(wrong, policy="O2")


def test_master_weights_keep_small_updates() -> None:
    model = conv()
    optimizer = paddle.optimizer.SGD(2.0**-20, parameters=model.parameters())
    step = amp.train_step(lambda m, x: m(x).square().mean(), model, optimizer, policy="O2:bfloat16")
    before = conv().weight.numpy()
    for _ in range(4):
        step(image())
    amp.undecorate(model, optimizer)
    assert not np.array_equal(model.weight.numpy(), before)


# -- what differs by design


def test_a_bfloat16_region_does_not_switch_the_scaler_off() -> None:
    """Theirs does (``test_amp_grad_scaler``), and for good; ours does what it was made for."""
    model, scaler = conv(), amp.GradScaler(8.0)
    with amp.autocast(amp.Policy("O1", "bfloat16", deny=["paddle:conv2d"]), "paddle"):
        loss = model(image()).mean()
    assert scaler.scale(loss).item() == pytest.approx(8 * loss.item())
    assert scaler.enabled


def test_a_disabled_scaler_s_scale_is_one() -> None:
    """Theirs says 0.0."""
    assert amp.GradScaler(enabled=False).get_scale() == 1.0


def test_an_optimizer_without_gradients_is_an_error() -> None:
    """Theirs steps it, and says nothing."""
    scaler = amp.GradScaler()
    scaler.scale(paddle.ones([]))
    with pytest.raises(RuntimeError, match="not one gradient"):
        scaler.step(sgd(conv()))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_gradients_are_unscaled_in_float32(dtype: str) -> None:
    """And clipped so: what was read was the scaled gradient, and clipping came to nothing."""
    layer = paddle.nn.Linear(2, 1).to(dtype=dtype)
    optimizer = paddle.optimizer.Momentum(parameters=layer.parameters(), multi_precision=True)
    scaler = amp.GradScaler(2.0**16)
    scaler.scale(paddle.ones([]))
    layer.bias.grad = paddle.to_tensor([1.0]).astype(dtype)
    scaler.unscale(optimizer)
    assert (layer.bias.grad.dtype, layer.bias.grad.item()) == (paddle.float32, 2.0**-16)
    layer.bias.grad.scale_(0.5)
    seen = []
    optimizer.step = lambda: seen.append(
        (layer.bias.grad.dtype, layer.bias.grad.astype("float32").item())
    )
    assert scaler.step(optimizer)
    assert seen == [(paddle.float32, 2.0**-17)]


def test_there_is_no_level_OD() -> None:
    """``level='OD'``: the ops of the white list low, all others float32. Here: what a list set says."""
    with pytest.raises(ValueError, match="allowed are"):
        amp.Policy.parse("OD")
