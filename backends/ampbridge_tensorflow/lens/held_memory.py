"""How much memory an action takes: as a GPU's allocator counts it, or as a CPU's tells the profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import tensorflow as tf

from ampbridge_tensorflow import _private
from ampbridge_tensorflow.probing import devices


def peak_memory(action: Callable[[], None]) -> int | None:
    """See ``Backend.peak_memory``.

    On a CPU it is what TensorFlow's profiler is told by an allocator that counts: that of oneDNN, which
    TensorFlow takes by itself on CPUs with AVX512-VNNI and newer ones, or that of the environment
    variable ``TF_CPU_ALLOCATOR_USE_BFC=1``. None without them, and while somebody else is profiling.
    """
    device = devices()[0]
    if device.kind == "gpu":
        return _peak_on_gpu(device.name.upper(), action)
    if device.kind != "cpu" or _private.value(_private.PROFILE) is None:
        action()
        return None
    return _peak_on_cpu(action)


def _peak_on_gpu(device: str, action: Callable[[], None]) -> int:
    before = tf.config.experimental.get_memory_info(device)["current"]
    tf.config.experimental.reset_memory_stats(device)
    action()
    peak: int = tf.config.experimental.get_memory_info(device)["peak"] - before
    return peak


def _peak_on_cpu(action: Callable[[], None]) -> int | None:
    only_memory = tf.profiler.experimental.ProfilerOptions(host_tracer_level=1)
    with TemporaryDirectory() as folder:
        try:
            tf.profiler.experimental.start(folder, options=only_memory)
        except tf.errors.AlreadyExistsError:
            action()
            return None
        try:
            action()
        finally:
            tf.profiler.experimental.stop()
        changes = [c for file in Path(folder).rglob("*.xplane.pb") for c in _changes(file)]
    if not changes:
        return None
    before = min(changes).before
    return max(0, max(change.held for change in changes) - before)


class Change(NamedTuple):
    """Bytes that an allocator holds after it gave or took back some, and before."""

    at: int
    held: int
    before: int


def _changes(profile: Path) -> Iterator[Change]:
    space = _private.value(_private.PROFILE)()
    space.ParseFromString(profile.read_bytes())
    signs = {"MemoryAllocation": 1, "MemoryDeallocation": -1}
    for plane in space.planes:
        stats = {number: each.name for number, each in plane.stat_metadata.items()}
        kinds = {number: each.name for number, each in plane.event_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                sign = signs.get(kinds[event.metadata_id])
                if sign is None:
                    continue
                told = {stats[s.metadata_id]: s.int64_value or s.uint64_value for s in event.stats}
                held, size = told["bytes_allocated"], told["allocation_bytes"]
                yield Change(line.timestamp_ns * 1000 + event.offset_ps, held, held - sign * size)
