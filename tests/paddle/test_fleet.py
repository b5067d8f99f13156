"""Fleet's hybrid groups over gloo: an overflow on one rank skips the step on all of them.

Fleet's model-parallel layers lack kernels on CPUs; ``gloo_model_parallel.py`` stands in for two operators
around them. Pipelines, ``group_sharded_parallel`` and sharding in buffers need GPUs as a whole: of those the
decision is tested, on objects that were never set up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import MethodType
from typing import Any
from unittest import mock

import numpy as np
import paddle
import pytest
from fleet_objects import SHARDING, SPLITTING, never_set_up, sharded
from launching import launch, start
from paddle import nn
from paddle.distributed import ParallelMode, fleet

import ampbridge as amp
from ampbridge.adapters.backend import FINITE, INF, NAN
from ampbridge_paddle import _private
from ampbridge_paddle._private import PRIVATE, private
from ampbridge_paddle.step import hybrid_groups, ranks

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "distributed" / "paddle_fleet.py"
WITH_MODEL_PARALLEL = Path(__file__).parent / "gloo_model_parallel.py"
STEPS = 12
# 1024, halved after each skip, doubled after three finite steps.
HISTORY = ".s...s...s.. scale=512 "

needs_ranks = pytest.mark.skipif(
    not paddle.distributed.is_available(), reason="Paddle is built without distributed training"
)

# -- the example


def lines_of_example(folder: Path, ranks: int, parallel: str, *arguments: str) -> list[str]:
    options = ["--parallel", parallel, "--steps", str(STEPS), *arguments]
    if parallel == "model":
        logs = launch(WITH_MODEL_PARALLEL, folder, ranks, str(EXAMPLE), *options)
    else:
        logs = launch(EXAMPLE, folder, ranks, *options)
    return [next(line for line in log.splitlines() if " weights=" in line) for log in logs]


def in_one_process(before: dict[str, np.ndarray], streams: int) -> dict[str, np.ndarray]:
    """The weights after a loop by hand over all batches, without the steps that overflow."""
    model = nn.Sequential(
        ("inner", nn.Linear(16, 24)), ("gelu", nn.GELU()), ("outer", nn.Linear(24, 4))
    )
    model.set_state_dict({name: paddle.to_tensor(value) for name, value in before.items()})
    optimizer = paddle.optimizer.AdamW(0.01, parameters=model.parameters())
    rngs = [np.random.default_rng(stream) for stream in range(streams)]
    for number in range(STEPS):
        batches = [
            (rng.standard_normal([8, 16]).astype(np.float32), rng.integers(0, 4, [8, 1]))
            for rng in rngs
        ]
        if number % 4 == 1:
            continue
        x, y = (paddle.to_tensor(np.concatenate(parts)) for parts in zip(*batches, strict=True))
        nn.functional.cross_entropy(model(x), y).backward()
        norm = np.sqrt(sum((p.grad.numpy() ** 2).sum() for p in model.parameters()))
        for p in model.parameters():
            p.grad = p.grad * float(min(1.0, 0.5 / norm))
        optimizer.step()
        optimizer.clear_grad()
    return {name: p.numpy() for name, p in model.named_parameters()}


@needs_ranks
@pytest.mark.parametrize(("parallel", "streams"), [("data", 2), ("sharding", 2), ("model", 1)])
def test_it_trains_as_one_process_would(tmp_path: Path, parallel: str, streams: int) -> None:
    """The gradients are clipped, by a norm over all ranks' parts."""
    first, second = lines_of_example(tmp_path, 2, parallel, "--policy", "O0", "--save", "saved")
    assert first == second
    assert first.startswith(HISTORY)
    before, after = (dict(np.load(tmp_path / "saved" / f"{n}.npz")) for n in ("before", "after"))
    for name, expected in in_one_process(before, streams).items():
        assert np.abs(after[name] - before[name]).max() > 0.01
        assert np.allclose(after[name], expected, rtol=0, atol=1e-5), name


@needs_ranks
@pytest.mark.parametrize(
    ("parallel", "policy"),
    [
        pytest.param("data", "O1", marks=pytest.mark.nightly),
        ("sharding", "O2"),
        pytest.param("model", "O1", marks=pytest.mark.nightly),
    ],
)
def test_three_ranks_in_low_precision(tmp_path: Path, parallel: str, policy: str) -> None:
    lines = lines_of_example(tmp_path, 3, parallel, "--policy", policy)
    assert lines[0].startswith(HISTORY)
    assert len(set(lines)) == 1


# -- what two ranks see


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, Any]]]:
    """What each rank printed, by the groups that it was in."""

    @cache
    def by_ranks(axis: str) -> list[dict[str, Any]]:
        folder = tmp_path_factory.mktemp(axis)
        script = Path(__file__).parent / "fleet_steps.py"
        logs = launch(script, folder, 2, axis, str(folder))
        return [json.loads(re.findall(r"^\{.*\}$", log, re.MULTILINE)[0]) for log in logs]

    return by_ranks


Seen = Callable[[str], list[dict[str, Any]]]
AXES = ["sharding", "sep"]


@needs_ranks
@pytest.mark.parametrize("axis", AXES)
class TestTwoRanks:
    def test_what_any_found_counts_inf_before_nan(self, seen: Seen, axis: str) -> None:
        for rank in seen(axis):
            assert {(one, other): found for one, other, found in rank["agreed"]} == {
                (FINITE, FINITE): FINITE,
                (FINITE, INF): INF,
                (FINITE, NAN): NAN,
                (INF, FINITE): INF,
                (INF, INF): INF,
                (INF, NAN): INF,
                (NAN, FINITE): NAN,
                (NAN, INF): INF,
                (NAN, NAN): NAN,
            }

    def test_steps_are_skipped_on_both(self, seen: Seen, axis: str) -> None:
        for rank in seen(axis):
            outcomes, weights = rank["steps"]
            assert outcomes == [[None, 64], ["inf", 32], ["nan", 16], [None, 16]]
            # As if the skipped ones had not been; on both ranks.
            assert weights == rank["two finite steps"][1] == seen(axis)[0]["steps"][1]

    def test_compiled_steps(self, seen: Seen, axis: str) -> None:
        assert all(rank["compiled"] == rank["steps"] for rank in seen(axis))

    @pytest.mark.parametrize("loop", ["by hand", "by values"])
    def test_loops_of_ones_own(self, seen: Seen, axis: str, loop: str) -> None:
        for rank in seen(axis):
            assert rank[loop][0] == [[True, 64], [False, 32], [True, 32]]
            assert rank[loop][1] == seen(axis)[0]["by hand"][1]

    def test_micro_batches(self, seen: Seen, axis: str) -> None:
        """Each of them finite or not, two steps or micro-batches are what the weights come from."""
        for rank in seen(axis):
            waiting = ["accumulating", 32]
            assert rank["drop_step"][0] == [["accumulating", 64], ["inf", 32], waiting, [None, 32]]
            assert rank["drop_microbatch"][0] == [["inf", 32], waiting, [None, 32]]
            assert rank["drop_step"][1] == rank["drop_microbatch"][1]

    def test_names_are_of_a_ranks_own_gradients(self, seen: Seen, axis: str) -> None:
        names = ["0.bias", "0.weight", "2.bias", "2.weight"]
        assert [rank["names"] for rank in seen(axis)] == [["inf", []], ["inf", names]]

    def test_a_step_reduces_one_number(self, seen: Seen, axis: str) -> None:
        """Beside the 44 gradients, which sharding does not all-reduce."""
        engine = {"sharding": [], "sep": [["paddle.float32", 44]]}[axis]
        for rank in seen(axis):
            assert rank["reductions"] == [["paddle.int32", 1], *engine]

    def test_the_optimizer_has_all_parameters(self, seen: Seen, axis: str) -> None:
        assert [rank["parameters"] for rank in seen(axis)] == [4, 4]

    def test_clipping_by_a_ranks_own_gradients_is_refused(self, seen: Seen, axis: str) -> None:
        mode = {"sharding": "SHARDING_PARALLEL", "sep": "SEGMENT_PARALLEL"}[axis]
        for rank in seen(axis):
            assert rank["clip_norm"].startswith(f"Clipping under fleet's {mode}: ")
            hint = "Hint: paddle.optimizer.AdamW(..., grad_clip=paddle.nn.ClipGradByGlobalNorm("
            assert rank["clip_norm"].splitlines()[-1].startswith(hint)

    def test_what_each_rank_saved_goes_on(self, seen: Seen, axis: str) -> None:
        """As the refusal of checkpoints advises."""
        for rank in seen(axis):
            went_on, came_back = rank["saved by rank"]
            assert went_on == came_back == seen(axis)[0]["saved by rank"][0]

    def test_checkpoints_of_a_part_are_refused(self, seen: Seen, axis: str) -> None:
        expected = {"sharding": "The optimizer is sharded: no rank has", "sep": "none"}[axis]
        assert all(rank["save"].startswith(expected) for rank in seen(axis))


DYING = """
import os
import numpy as np, paddle
from paddle.distributed import fleet
import ampbridge as amp

strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"dp_degree": 1, "sharding_degree": 2}
fleet.init(is_collective=True, strategy=strategy)
network = paddle.nn.Linear(4, 4)
optimizer = paddle.optimizer.SGD(0.1, parameters=network.parameters())
model, optimizer = fleet.distributed_model(network), fleet.distributed_optimizer(optimizer)
step = amp.train_step(lambda model, x: model(x).square().mean(), model, optimizer)
for number in range(5):
    if number == 2 and paddle.distributed.get_rank() == 1:
        os._exit(7)
    step(np.ones([2, 4], np.float32))
    print("step", number, flush=True)
"""


@needs_ranks
def test_a_rank_that_dies_is_an_error_on_the_other_one(tmp_path: Path) -> None:
    """Without the launcher, which would end it anyway."""
    script = tmp_path / "dying.py"
    script.write_text(DYING)
    ranks = start(script, 2)
    try:
        assert ranks[1].wait() == 7
        printed, errors = ranks[0].communicate()
    finally:
        for each in ranks:
            each.kill()
            each.communicate()
    assert ranks[0].returncode != 0
    assert [line for line in printed.splitlines() if "step" in line] == ["step 0", "step 1"]
    assert "ranks.py" in errors
    assert "gloo" in errors


# -- decisions, in this process alone


def fleet_in_mode(number: int | None) -> Any:
    groups = mock.Mock(get_parallel_mode=lambda: number)
    return mock.patch.object(fleet, "get_hybrid_communicate_group", return_value=groups)


@pytest.mark.parametrize("number", [None, ParallelMode.DATA_PARALLEL])
def test_ranks_with_the_same_gradients_have_nothing_to_agree_on(number: int | None) -> None:
    with fleet_in_mode(number), mock.patch.object(paddle.distributed, "all_reduce") as all_reduce:
        for found in (FINITE, INF, NAN):
            assert ranks.agree(found, None) == found
        assert amp.GradScaler(8.0).scale(paddle.ones([])).item() == 8.0
    all_reduce.assert_not_called()


@pytest.mark.parametrize("name", ["TENSOR", "SHARDING", "SEGMENT"])
def test_the_others_agree_over_the_world(name: str) -> None:
    reduced = []

    def all_reduce(tensor: paddle.Tensor, op: int, group: Any = None) -> None:
        reduced.append((op, group))
        tensor.set_value(paddle.maximum(tensor, others))

    others = paddle.zeros([1], "int32")  # the least that there is: all finite
    mode = fleet_in_mode(getattr(ParallelMode, f"{name}_PARALLEL"))
    with mode, mock.patch.object(paddle.distributed, "all_reduce", all_reduce):
        assert [ranks.agree(f, None) for f in (FINITE, INF, NAN)] == [FINITE, INF, NAN]
    assert reduced == 3 * [(paddle.distributed.ReduceOp.MAX, None)]


def test_a_pipeline_is_refused() -> None:
    refused = pytest.raises(amp.UnsupportedError, match=r"\nHint: .*model\.train_batch\(\[x, y\]")
    with fleet_in_mode(ParallelMode.PIPELINE_PARALLEL), refused:
        amp.GradScaler().scale(paddle.ones([]))


def sgd() -> paddle.optimizer.Optimizer:
    return paddle.optimizer.SGD(0.1, parameters=nn.Linear(2, 2).parameters())


@pytest.fixture
def distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paddle.distributed, "is_initialized", lambda: True)


@pytest.mark.usefixtures("distributed")
class TestRefused:
    @pytest.mark.parametrize(
        ("name", "flags"),
        [
            (SPLITTING, {}),
            (SHARDING, {"tensor_fusion": True}),
            (SHARDING, {"comm_overlap": True}),
        ],
    )
    def test_sharding_in_buffers(self, name: str, flags: dict[str, bool]) -> None:
        its = sgd()
        optimizer = sharded(its, name, **flags)
        match = r"split_param, tensor_fusion or comm_overlap.*\nHint: strategy.hybrid_configs"
        with pytest.raises(amp.UnsupportedError, match=match):
            ranks.agree(FINITE, optimizer)
        assert hybrid_groups.without_wrappers(optimizer) is its

    def test_other_sharding_is_not(self) -> None:
        its = sgd()
        optimizer = sharded(its)
        assert ranks.agree(INF, optimizer) == INF
        assert hybrid_groups.is_sharded(optimizer)
        assert not hybrid_groups.is_sharded(its)

    @pytest.mark.parametrize("stage", ["2", "3"])
    def test_group_sharded_models(self, stage: str) -> None:
        name = f"paddle.distributed.sharding.group_sharded.GroupShardedStage{stage}"
        with pytest.raises(amp.UnsupportedError, match=f"GroupShardedStage{stage} of.*\nHint: "):
            hybrid_groups.check_model(never_set_up(name))

    def test_group_sharded_optimizers(self) -> None:
        name = "paddle.distributed.sharding.group_sharded.GroupShardedOptimizerStage2"
        with pytest.raises(amp.UnsupportedError, match=r"OptimizerStage2 of.*\nHint: "):
            ranks.agree(FINITE, never_set_up(name))

    def test_optimizers_whose_step_is_that_of_stage_3(self) -> None:
        def step(optimizer: Any) -> None: ...

        stage_3 = "paddle.distributed.fleet.meta_parallel.sharding.group_sharded_stage3"
        step.__module__ = stage_3
        optimizer = sgd()
        assert ranks.agree(NAN, optimizer) == NAN
        optimizer.step = MethodType(step, optimizer)
        with pytest.raises(amp.UnsupportedError, match=r"^SGD of group_sharded_parallel.*\nHint: "):
            ranks.agree(FINITE, optimizer)

    def test_weights_of_which_a_rank_has_a_part(self) -> None:
        model = nn.Linear(2, 2)
        model.weight.is_distributed = True
        match = r"model-parallel: no rank has its weights as a whole\.\nHint: each rank saves"
        with pytest.raises(amp.UnsupportedError, match=match):
            amp.backend("paddle").read_weights(model)


@pytest.mark.parametrize("name", [name for name in PRIVATE if name.startswith("paddle.")])
def test_every_private_name_is_there(name: str) -> None:
    assert private(name) is not None


def test_one_that_has_moved_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "paddle.distributed.fleet.meta_parallel.MetaParallelBase"
    monkeypatch.delattr(name)
    _private.private.cache_clear()
    try:
        refused = pytest.raises(amp.UnsupportedError, match=f"has no {name} .*hybrid groups")
        with fleet_in_mode(ParallelMode.SHARDING_PARALLEL), refused:
            amp.backend("paddle").layers(nn.Linear(2, 2))
    finally:
        _private.private.cache_clear()
