"""A monitored training against one that is not, in any framework: ``lens.monitor``'s promises."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import ampbridge as amp
from ampbridge import lens, workloads
from ampbridge.adapters import registry


class Trained(NamedTuple):
    """What came of a training."""

    results: list[tuple[float, float, str | None]]
    weights: dict[str, Any]
    slots: dict[str, Any]


def train(work: Any, step: Any, batches: list[Any]) -> Trained:
    results = [(r.loss, r.scale, r.reason) for r in (step(*batch) for batch in batches)]
    backend = registry.backend(registry.framework_of(work.model))
    with amp.undecorated(work.model, work.optimizer):
        weights = backend.read_weights(work.model)
    slots = backend.read_optimizer(work.optimizer, work.model).slots
    return Trained(results, dict(weights), dict(slots))


def assert_same_bits(one: Trained, other: Trained) -> None:
    assert one.results == other.results
    for a, b in ((one.weights, other.weights), (one.slots, other.slots)):
        assert a.keys() == b.keys()
        assert all(np.array_equal(a[name], b[name]) for name in a)


def assert_monitored_alike(
    framework: str, policy: str | amp.Policy, workload: str = "digits-conv", **options: Any
) -> None:
    """Four steps, of which the first overflows, with looks at the first and the third.

    The second look is ``lens.ranges`` on the same batch.
    """
    build = workloads.find(workload)

    def made() -> tuple[Any, Any]:
        work = build(framework, 0)
        scaler = amp.GradScaler(init_scale=2.0**20)
        step = amp.train_step(
            work.loss_fn, work.model, work.optimizer, policy=policy, scaler=scaler, **options
        )
        return work, step

    (work, step), (watched, watched_step) = made(), made()
    batches = [tuple(x[:16] for x in batch) for batch in work.first(4)]
    monitor = lens.monitor(watched_step, every=2)
    first = train(work, step, batches[:2])
    assert_same_bits(first, train(watched, monitor, batches[:2]))
    with amp.undecorated(watched.model, watched.optimizer):
        expected = lens.ranges(
            work.loss_fn, watched.model, *batches[2], policy=policy, scale=step.scaler.get_scale()
        )
    second = train(work, step, batches[2:])
    assert_same_bits(second, train(watched, monitor, batches[2:]))
    assert monitor.ranges is not None
    assert monitor.ranges.rows == expected.rows
    assert (monitor.ranges.scale, monitor.ranges.policy) == (expected.scale, expected.policy)
    skips = [reason is not None for _, _, reason in (*first.results, *second.results)]
    assert {(row.step, row.skipped) for row in monitor.rows} == {(1, skips[0]), (3, sum(skips[:3]))}
