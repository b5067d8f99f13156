"""Twelve small models, each with one fault of mixed precision in it, for every framework.

A framework brings a ``Kit``: its ops by canonical name, and layers made of weights, parts and a
function. What is to be found stands beside each fault; whether a patch cures it, ``assert_cured``
tells without the lens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import pytest

import ampbridge as amp
from ampbridge import lens

Forward = Callable[[Any, Any], Any]
"""``forward(layer, x)``, which reads the layer's weights and parts as attributes."""


class Kit(Protocol):
    """A framework in the faults' words."""

    def layer(
        self,
        forward: Forward,
        weights: Mapping[str, np.ndarray] = {},
        parts: Mapping[str, Any] = {},
    ) -> Any:
        """A native layer with trainable float32 weights (in, out), and layers below it."""

    # Ops: native functions of native arrays.
    def matmul(self, x: Any, y: Any) -> Any: ...
    def exp(self, x: Any) -> Any: ...
    def log(self, x: Any) -> Any: ...
    def multiply(self, x: Any, y: Any) -> Any: ...
    def subtract(self, x: Any, y: Any) -> Any: ...
    def divide(self, x: Any, y: Any) -> Any: ...
    def sum(self, x: Any, axis: int | None = None) -> Any:
        """Over all elements, or over one axis that is kept."""

    def mean(self, x: Any, axis: int | None = None) -> Any:
        """Likewise."""

    def transpose(self, x: Any) -> Any:
        """Of a matrix."""


class Fault(NamedTuple):
    """A model, how it is run, and what is wrong with it."""

    name: str
    model: Callable[[Kit], Any]
    x: np.ndarray
    op: str
    layer: str
    direction: str
    kind: str
    policy: amp.Policy = amp.Policy("O1", "float16")
    scale: float = 16.0
    only_the_scale: bool = False
    """Whether nothing but the loss scale is to be changed."""


def loss_fn(model: Any, x: Any) -> Any:
    """Each model ends in its own objective."""
    return model(x)


def in_turn(kit: Kit, **parts: Any) -> Any:
    """A model that calls its parts one after the other."""

    def forward(model: Any, x: Any) -> Any:
        for name in parts:
            x = getattr(model, name)(x)
        return x

    return kit.layer(forward, parts=parts)


def linear(kit: Kit, weight: np.ndarray) -> Any:
    """``x @ weight``."""
    return kit.layer(lambda layer, x: kit.matmul(x, layer.weight), {"weight": weight})


def sum_of_squares(kit: Kit) -> Any:
    return kit.layer(lambda layer, x: kit.sum(kit.multiply(x, x)))


def total(kit: Kit) -> Any:
    return kit.layer(lambda layer, x: kit.sum(x))


def filled(value: float, *shape: int) -> np.ndarray:
    """A constant that differs a little from element to element, so that no difference is zero."""
    steps = np.linspace(-0.01, 0.01, int(np.prod(shape))).reshape(shape)
    return (value * (1 + steps)).astype(np.float32)


# -- the models


def attention_exp(kit: Kit) -> Any:
    """Softmax by hand, without the row's maximum subtracted: exp of 12 is beyond float16."""

    def attend(layer: Any, x: Any) -> Any:
        scores = kit.matmul(kit.matmul(x, layer.query), kit.transpose(x))
        weights = kit.exp(scores)
        return kit.matmul(kit.divide(weights, kit.sum(weights, axis=1)), x)

    attention = kit.layer(attend, {"query": (3 * np.eye(4)).astype(np.float32)})
    return in_turn(kit, attention=attention, objective=sum_of_squares(kit))


def gate_exp(kit: Kit) -> Any:
    """In a layer two levels below the model."""
    gate = kit.layer(
        lambda layer, x: kit.exp(kit.matmul(x, layer.weight)), {"weight": filled(2.9, 4, 4)}
    )
    head = linear(kit, filled(1e-6, 4, 2))
    return in_turn(kit, block=in_turn(kit, gate=gate), head=head, objective=total(kit))


def norm_variance(kit: Kit) -> Any:
    """Deviations of 400 are fine, their squares are not."""

    def normalize(layer: Any, x: Any) -> Any:
        centred = kit.subtract(x, kit.mean(x, axis=1))
        variance = kit.mean(kit.multiply(centred, centred), axis=1)
        return kit.divide(centred, variance)

    spread = np.outer(np.full(4, 100.0), [-1, -1, 1, 1]).astype(np.float32)
    return in_turn(
        kit, project=linear(kit, spread), norm=kit.layer(normalize), objective=sum_of_squares(kit)
    )


def pool_sum(kit: Kit) -> Any:
    """1000 values of 100, summed where sum is allowed."""
    pool = kit.layer(
        lambda layer, x: kit.sum(kit.matmul(x, layer.weight), axis=1),
        {"weight": filled(25.0, 4, 1000)},
    )
    head = linear(kit, filled(1e-6, 1, 1))
    return in_turn(kit, pool=pool, head=head, objective=total(kit))


def large_product(kit: Kit) -> Any:
    """64 products of 200 and 10."""
    widen = linear(kit, filled(50.0, 4, 64))
    return in_turn(
        kit,
        widen=widen,
        head=linear(kit, filled(10.0, 64, 2)),
        down=linear(kit, filled(1e-6, 2, 1)),
        objective=total(kit),
    )


def large_input(kit: Kit) -> Any:
    """A batch that float16 does not hold."""
    embed = linear(kit, filled(1e-4, 4, 3))
    return in_turn(kit, embed=embed, head=linear(kit, filled(0.1, 3, 2)), objective=total(kit))


def zero_over_zero(kit: Kit) -> Any:
    """Scores of 1e-9, divided by their sum."""

    def shares(layer: Any, x: Any) -> Any:
        scores = kit.matmul(x, layer.weight)
        return kit.divide(scores, kit.sum(scores, axis=1))

    return in_turn(
        kit, shares=kit.layer(shares, {"weight": filled(1e-9, 4, 3)}), objective=sum_of_squares(kit)
    )


def log_of_zero(kit: Kit) -> Any:
    """The logarithm of probabilities of 1e-9."""
    surprise = kit.layer(
        lambda layer, x: kit.log(kit.matmul(x, layer.weight)), {"weight": filled(1e-9, 4, 3)}
    )
    return in_turn(kit, surprise=surprise, objective=total(kit))


def small_loss(kit: Kit) -> Any:
    """Squares of 1e-4, and their mean over 65,536 elements: the squares are lost, and the gradient."""
    objective = kit.layer(lambda layer, x: kit.mean(kit.multiply(x, x)))
    return in_turn(kit, head=linear(kit, filled(2.5e-5, 4, 1024)), objective=objective)


def small_weights(kit: Kit) -> Any:
    """The gradient of a mean over 1024 rows, behind a head of weights of 2e-5."""
    objective = kit.layer(lambda layer, x: kit.mean(x))
    return in_turn(
        kit,
        hidden=linear(kit, filled(0.25, 4, 8)),
        head=linear(kit, filled(2e-5, 8, 1)),
        spread=linear(kit, filled(1.0, 1, 64)),
        objective=objective,
    )


def high_scale(kit: Kit) -> Any:
    """Nothing is wrong with it but the scale."""
    return in_turn(kit, head=linear(kit, filled(0.25, 4, 3)), objective=sum_of_squares(kit))


def steep_ratio(kit: Kit) -> Any:
    """1 / x at x = 1e-3 is 1000, its derivative a million."""
    one = kit.layer(lambda layer, x: kit.divide(kit.divide(x, x), x))
    return in_turn(kit, head=linear(kit, filled(2.5e-4, 4, 3)), ratio=one, objective=total(kit))


ONES = np.ones((4, 4), np.float32)

FAULTS: Sequence[Fault] = (
    Fault(
        "exp in an attention", attention_exp, filled(1.0, 4, 4), "exp", "attention", "forward", "overflow",
        amp.Policy("O1", "float16", allow=["exp"]),
    ),
    Fault(
        "exp in a nested layer", gate_exp, ONES, "exp", "block.gate", "forward", "overflow",
        amp.Policy("O1", "float16", allow=["exp"]),
    ),
    Fault("the variance of a norm", norm_variance, ONES, "multiply", "norm", "forward", "overflow"),
    Fault(
        "a sum", pool_sum, ONES, "sum", "pool", "forward", "overflow",
        amp.Policy("O1", "float16", allow=["sum"]),
    ),
    Fault("a product", large_product, ONES, "matmul", "head", "forward", "overflow"),
    Fault("an input", large_input, 1e5 * ONES, "cast", "embed", "forward", "overflow"),
    Fault("0/0", zero_over_zero, ONES, "cast", "shares", "forward", "underflow"),
    Fault("the logarithm of 0", log_of_zero, ONES, "cast", "surprise", "forward", "underflow"),
    Fault(
        "a loss that underflows", small_loss, np.ones((64, 4), np.float32),
        "multiply", "objective", "forward", "underflow", scale=1.0,
    ),
    Fault(
        "a gradient that underflows", small_weights, np.ones((1024, 4), np.float32),
        "matmul", "head", "backward", "underflow", scale=1.0, only_the_scale=True,
    ),
    Fault(
        "a scale that is too high", high_scale, ONES,
        "sum", "objective", "backward", "overflow", scale=2.0**24, only_the_scale=True,
    ),
    Fault(
        "a gradient that overflows at any scale of use", steep_ratio, ONES,
        "divide", "ratio", "backward", "overflow", scale=1.0,
    ),
)  # fmt: skip


# -- what is asserted


def assert_located_and_cured(kit: Kit, fault: Fault) -> None:
    """Op, layer, direction and kind are named, and the patch cures it as told without the lens."""
    assert not is_sound(kit, fault, fault.policy, fault.scale)
    found = lens.locate(loss_fn, fault.model(kit), fault.x, policy=fault.policy, scale=fault.scale)
    expected = (fault.op, fault.layer, fault.direction, fault.kind)
    assert (found.op, found.layer, found.direction, found.kind) == expected
    assert found.patch is not None, found
    exact = _loss(kit, fault, amp.Policy("O0"))
    assert abs(_loss(kit, fault, found.cured_policy) - exact) < 0.02 * abs(exact), found
    assert is_sound(kit, fault, found.cured_policy, found.cured_scale), found
    if fault.only_the_scale:
        assert (found.patch.deny, found.patch.keep) == ((), ())


def gradients(kit: Kit, fault: Fault, policy: amp.Policy, scale: float) -> list[np.ndarray]:
    """The gradients that ``value_and_grad`` gives, still scaled, and the loss."""
    model = fault.model(kit)
    backend = amp.backend(model)
    scaler = amp.GradScaler(scale, min_scale=2.0**-126, max_scale=2.0**127)
    loss, grads = amp.value_and_grad(loss_fn, model, fault.x, policy=policy, scaler=scaler)
    return [backend.to_numpy(array) for array in (*grads, loss)]


def _loss(kit: Kit, fault: Fault, policy: amp.Policy) -> float:
    return float(gradients(kit, fault, policy, 1.0)[-1])


def is_sound(kit: Kit, fault: Fault, policy: amp.Policy, scale: float) -> bool:
    """Finite, and no gradient all zero."""
    *grads, loss = gradients(kit, fault, policy, scale)
    finite = all(np.isfinite(array).all() for array in (*grads, loss))
    return finite and all((array != 0).any() for array in grads)


# -- overflows that a later op swallows, and losses that raise


def shares_of_squares(kit: Kit) -> Any:
    """A projection by hand: x * (x y) / (x x) with squares of 400, whose quotient is 0 and not 1."""

    def project(layer: Any, x: Any) -> Any:
        x = kit.matmul(x, layer.weight)
        squares = kit.sum(kit.multiply(x, x), axis=1)
        return kit.divide(x, squares)

    return in_turn(
        kit,
        project=kit.layer(project, {"weight": filled(100.0, 4, 4)}),
        objective=sum_of_squares(kit),
    )


def vanishing_squares(kit: Kit) -> Any:
    """A quotient of 1e-4 and of a mean of squares, which float16 has as zero."""

    def normalize(layer: Any, x: Any) -> Any:
        x = kit.matmul(x, layer.weight)
        return kit.divide(x, kit.mean(kit.multiply(x, x), axis=1))

    shrink = linear(kit, filled(1e-4, 4, 2))
    norm = kit.layer(normalize, {"weight": filled(0.25, 4, 4)})
    return in_turn(
        kit, first=linear(kit, filled(2.5e-5, 4, 4)), norm=norm, shrink=shrink, objective=total(kit)
    )


SWALLOWED = Fault(
    "a quotient by inf",
    shares_of_squares,
    ONES,
    "multiply",
    "project",
    "forward",
    "overflow",
    scale=1.0,
)
LOST = Fault(
    "squares that vanish",
    vanishing_squares,
    ONES,
    "multiply",
    "norm",
    "forward",
    "underflow",
    scale=1.0,
)


def assert_swallowed_is_located(kit: Kit) -> None:
    """All is finite, the loss is wrong, and the report says by how much and what to run next."""
    fault = SWALLOWED
    low, exact = (_loss(kit, fault, policy) for policy in (fault.policy, amp.Policy("O0")))
    assert np.isfinite(low)
    assert abs(low - exact) > 0.5 * exact
    assert_located_and_cured(kit, fault)
    found = lens.locate(loss_fn, fault.model(kit), fault.x, policy=fault.policy, scale=fault.scale)
    assert abs(found.loss_error - (exact - low) / exact) < 1e-6
    printed = " ".join(str(found).split())
    assert f"The loss is {low:.6g}, in float32 {exact:.6g}" in printed
    assert "lens.align((loss_fn, model, 'O0'), (loss_fn, model, 'O1:float16'), *batch)" in printed


def assert_raising_is_reported(kit: Kit) -> None:
    """Each report says what came before an exception that the policy alone brings about, and which."""

    def checked(model: Any, x: Any) -> Any:
        y = model.head(model.widen(x))
        if not np.isfinite(amp.backend(model).to_numpy(y)).all():
            raise ValueError("a check of the user's")
        return model.objective(model.down(y))

    model = large_product(kit)
    raised, first = "ValueError: a check of the user's", ("matmul", "widen")
    found = lens.locate(checked, model, ONES, policy="O1:float16", scale=1.0)
    assert (found.kind, found.op, found.layer, found.raised) == (
        "overflow",
        "matmul",
        "head",
        raised,
    )
    assert found.patch is not None
    census = lens.census(checked, model, ONES, policy="O1:float16")
    assert [(row.op, row.layer) for row in census.rows] == [first, ("matmul", "head")]
    assert census.raised == raised
    ranges = lens.ranges(checked, model, ONES, policy="O1:float16")
    dtypes = {row.layer: row.dtype for row in ranges.rows if row.kind == "output"}
    assert (dtypes["widen"], dtypes["down"], ranges.raised) == ("float16", "", raised)
    bisection = lens.bisect(checked, model, [(ONES,)], "O1:float16", scale=1.0)
    assert bisection.entries
    assert bisection.raised == raised
    assert not lens.locate(checked, model, ONES, policy=bisection.policy, scale=1.0).raised
    alignment = lens.align((checked, model, "O0"), (checked, model, "O1:float16"), ONES)
    assert alignment.forward.b.layer == "head"
    assert alignment.raised == ("", raised)
    for report in (found, census, ranges, bisection, alignment):
        assert raised in " ".join(str(report).split())


def assert_scale_is_found(model: Any, loss_fn: Any, op: str, layer: str) -> None:
    """A backward pass with a threshold: the gradients at two scales tell."""
    found = lens.locate(loss_fn, model, ONES, policy="O1:float16", scale=2.0**10)
    assert (found.kind, found.direction, found.op, found.layer) == ("scale", "backward", op, layer)
    assert "depend on the loss scale" in " ".join(str(found).split())
    assert not lens.locate(loss_fn, model, ONES, policy="O1:bfloat16")
    with pytest.raises(amp.ArgumentError, match=r"lens\.locate\((.|\n)*depend on the loss scale"):
        lens.bisect(loss_fn, model, [(ONES,)], "O1:float16", scale=2.0**10)
