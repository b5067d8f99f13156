"""The replicas of a ``tf.distribute`` strategy: what runs on each of them, and what they agree on.

Each replica differentiates the mean loss over its own part of the batch; gradients are averaged over
all replicas, as torch's DistributedDataParallel does. That is done once a step, after unscaling and
before the check, so that every replica sees the same gradients: what it finds in them, their norm, the
decision to skip, the scale. Nothing else has to be agreed on. Keras' optimizer, which would sum the
gradients over the replicas once more, is kept from it.

A replica is a thread of its own under ``MirroredStrategy``, and inherits no region: all that opens one
does so inside of the replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from ampbridge.adapters.backend import Array, Model, Program, Scalar, StepOutput
from ampbridge.adapters.interception import Interception, Site
from ampbridge.adapters.nested import Structure, leaves
from ampbridge.adapters.ranks import act_for_all
from ampbridge.errors import ArgumentError, CallOrderError, UnsupportedError, listed
from ampbridge.policies.policy import Policy
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.autocast.regions import replacement_where
from ampbridge_tensorflow.native_values import made_under, on_values

STRATEGIES = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)

Strategy: TypeAlias = tf.distribute.Strategy


def strategy_of(owner: Any) -> Strategy | None:
    """The strategy under which a model's variables were made; of what has none, that of the caller.

    Raises:
        UnsupportedError: for one that does not give every replica its own copy of each variable.
    """
    present = _checked(tf.distribute.get_strategy() if tf.distribute.has_strategy() else None)
    variables = getattr(owner, "trainable_variables", None)
    return _checked(made_under(variables[0])) if variables else present


def _checked(strategy: Strategy | None) -> Strategy | None:
    if strategy is None or isinstance(strategy, STRATEGIES):
        return strategy
    allowed = listed([known.__name__ for known in STRATEGIES])
    msg = (
        f"Training in mixed precision under {type(strategy).__name__}; allowed are {allowed}.\n"
        "Hint: strategy = tf.distribute.MirroredStrategy(), of one device or of several"
    )
    raise UnsupportedError(msg)


# -- on the inside: one replica of several


def in_replica() -> bool:
    """Whether the caller is a replica of a strategy's, be it the only one."""
    return tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()


def replica() -> int:
    """See ``Backend.replica``."""
    if not in_replica():
        return 0
    context = tf.distribute.get_replica_context()
    # Among the replicas of all processes.
    place: int = tf.get_static_value(context.replica_id_in_sync_group)
    return place % len(context.strategy.extended.worker_devices)


def averaged(grads: Sequence[Array]) -> list[Array]:
    """Gradients as their mean over all replicas; one ``all_reduce``. None stays None.

    They are divided before they are summed, which cannot overflow.
    """
    present = [gradient for gradient in grads if gradient is not None]
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1 or not present:
        return list(grads)
    count = context.num_replicas_in_sync
    shares = [on_values(gradient, lambda values: values / count) for gradient in present]
    means = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, shares))
    return [None if gradient is None else next(means) for gradient in grads]


def step_if(
    wanted: Scalar, step: Callable[[Sequence[Array]], Any], grads: Sequence[Array]
) -> Scalar:
    """``step(grads)``, unless ``wanted`` is false; on every replica. Returns ``wanted``.

    The branch is taken once for all replicas of this process, and then each steps in a branch of its
    own: a replica in a ``tf.cond`` could not wait for the others, and Keras' optimizers do.
    """

    def step_or_not(wanted: Scalar, function: Callable[..., Any], *arguments: Any) -> Scalar:
        def done() -> Array:
            function(*arguments)
            return tf.constant(True)

        return tf.cond(wanted, done, lambda: tf.constant(False))

    if not in_replica():
        return step_or_not(wanted, step, grads)

    def branch(strategy: Strategy, wanted: Any, grads: Any) -> None:
        step_everywhere = strategy.extended.call_for_each_replica
        step_or_not(_first(strategy, wanted), step_everywhere, step, (grads,))

    tf.distribute.get_replica_context().merge_call(branch, args=(wanted, grads))
    return wanted


# -- the optimizer's own reduction


@contextmanager
def gradients_are_reduced() -> Iterator[None]:
    """A block in which Keras' optimizers do not sum gradients over the replicas.

    Raises:
        UnsupportedError: if Keras has moved what does so.
    """
    if not in_replica():
        yield
        return
    _private.check(_private.REDUCE_GRADIENTS)
    with _reductions.region(True):
        yield


def _reduced(known: bool, original: Any, optimizer: Any, grads_and_vars: Any) -> Any:
    """``_all_reduce_sum_gradients`` in such a block."""
    return list(grads_and_vars)


def _find_sites() -> Sequence[Site]:
    place = _private.find(_private.REDUCE_GRADIENTS)
    assert place is not None
    replace = replacement_where(_reductions.active.get, _reduced)
    return [Site(*place, replace(place.value))]


_reductions: Interception[bool] = Interception("ampbridge_tensorflow reductions", _find_sites)


def check_scope(optimizer: Any, parameters: Sequence[Any]) -> None:
    """Refuse an optimizer or parameters from outside of the scope of the strategy that runs.

    (TensorFlow lets each replica write to one and the same counter of steps.)

    Raises:
        CallOrderError: if not.
    """
    variables = (optimizer.iterations, *parameters)
    scopes = [made_under(variable) for variable in variables]
    running = tf.distribute.get_strategy() if in_replica() else None
    strategy = running or next((scope for scope in scopes if scope is not None), None)
    for variable, scope in zip(variables, scopes, strict=True):
        if scope is not strategy:
            what = "optimizer" if variable is optimizer.iterations else "model"
            msg = (
                f"{variable.name!r} was not made in the scope of the {type(strategy).__name__}.\n"
                f"Hint: with strategy.scope(): {what} = ..."
            )
            raise CallOrderError(msg)
    if running is not strategy:
        msg = (
            f"Model and optimizer were made in the scope of a {type(strategy).__name__}; the step runs "
            "on none of its replicas.\n"
            "Hint: strategy.run(replica_function, args=(x, y)), and the step in replica_function."
        )
        raise CallOrderError(msg)


# -- from the outside: all replicas


@contextmanager
def variables_made_under(strategy: Strategy | None) -> Iterator[None]:
    """A block that makes variables eagerly under a strategy, unseen by the present trace or replica.

    (A trace that sees variables made is traced once more.)
    """
    unseen = _private.value(_private.EAGER_MODE)
    with tf.init_scope(), ExitStack() as stack:
        if unseen is not None:
            # Whether one is in a trace, in a scope or in a replica is a matter of the graph.
            stack.enter_context(tf.Graph().as_default())
            stack.enter_context(unseen())
        if strategy is not None:
            stack.enter_context(strategy.scope())
        yield


def on_replicas(program: Program, model: Model) -> Program:
    """See ``Backend.on_replicas``: a step, run on every replica of the model's strategy.

    Distributed values in the batch go to their replicas, all else to each. ``aux`` and gradients that
    are still to be added to are handed back as distributed values.
    """

    def distributed(
        policy: Policy, final: bool, total: Sequence[Array] | None, batch: Sequence[Any]
    ) -> StepOutput:
        strategy = strategy_of(model)
        if strategy is None:
            return program(policy, final, total, batch)
        items, structure = leaves(batch), Structure(batch)
        _check_call(strategy, items)

        def step(total: Sequence[Array] | None, items: Sequence[Any]) -> StepOutput:
            return program(policy, final, total, structure.filled(items))

        return _joint(strategy, strategy.run(step, args=(total, items)))

    return distributed


def _joint(strategy: Strategy, output: StepOutput) -> StepOutput:
    """One output for those of all replicas."""

    def agreed(value: Any) -> Any:
        return tf.nest.map_structure(lambda leaf: _first(strategy, leaf), value)

    loss = strategy.reduce(tf.distribute.ReduceOp.MEAN, output.loss, axis=None)
    return StepOutput(loss, output.aux, output.grads, *map(agreed, output[3:]))


def _first(strategy: Strategy, value: Any) -> Any:
    return strategy.experimental_local_results(value)[0]


def _check_call(strategy: Strategy, items: Sequence[Any]) -> None:
    if in_replica():
        msg = (
            "A train_step was called by a replica: it counts steps, and runs on all replicas itself.\n"
            "Hint: for batch in strategy.experimental_distribute_dataset(dataset): step(*batch); in a "
            "replica's own function, amp.value_and_grad and GradScaler."
        )
        raise CallOrderError(msg)
    replicas = len(strategy.extended.worker_devices)
    shared = [item for item in items if getattr(item, "ndim", 0)]
    distributed = [item for item in items if isinstance(item, tf.distribute.DistributedValues)]
    if replicas > 1 and shared and not distributed:
        msg = (
            f"Each of {replicas} replicas would train on the same batch: nothing in it is distributed, "
            f"an array of shape {tuple(shared[0].shape)} for one.\n"
            "Hint: for batch in strategy.experimental_distribute_dataset(dataset): step(*batch)"
        )
        raise ArgumentError(msg)


# -- several processes


def on_one_rank(model: Model, action: Callable[[], None]) -> None:
    """See ``Backend.on_one_rank``: in the process of the first replica."""
    strategy = strategy_of(model)
    if strategy is None or strategy.num_replicas_in_sync == len(strategy.extended.worker_devices):
        action()
        return
    # Among the replicas of all processes.
    places = strategy.experimental_distribute_values_from_function(
        lambda context: context.replica_id_in_sync_group
    )
    act_for_all(action, _first(strategy, places) == 0, lambda text: _sent(strategy, text))


def _sent(strategy: Strategy, text: str | None) -> str | None:
    """The ``text`` of the first replica's process, in all processes; its first 4,096 bytes."""
    encoded = np.frombuffer((text or "").encode()[:4096], np.uint8)
    codes = np.pad(encoded.astype(np.float32), (0, 4096 - encoded.size))  # bytes cannot be summed

    def contribution(context: tf.distribute.experimental.ValueContext) -> Array:
        return tf.constant(codes if context.replica_id_in_sync_group == 0 else np.zeros_like(codes))

    values = strategy.experimental_distribute_values_from_function(contribution)
    total = strategy.reduce(tf.distribute.ReduceOp.SUM, values, axis=None)
    received = total.numpy().astype(np.uint8).tobytes().rstrip(b"\0")
    return received.decode(errors="ignore") or None
