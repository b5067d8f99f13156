"""What each of two ranks in a hybrid group sees of its steps, as a line of JSON.

python -m paddle.distributed.launch --nproc_per_node 2 fleet_steps.py sharding|sep folder
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from collections.abc import Callable
from typing import Any

import paddle
from paddle import nn
from paddle.distributed import fleet

import ampbridge as amp
from ampbridge.adapters.backend import FINITE, INF, NAN
from ampbridge_paddle.step import ranks

axis, folder = sys.argv[1:]
strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"dp_degree": 1, f"{axis}_degree": 2}
fleet.init(is_collective=True, strategy=strategy)
rank = paddle.distributed.get_rank()


def training(**arguments: Any) -> tuple[nn.Layer, Any]:
    paddle.seed(0)
    network = nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(), nn.Linear(6, 2))
    momentum = paddle.optimizer.Momentum(0.1, parameters=network.parameters(), **arguments)
    return fleet.distributed_model(network), fleet.distributed_optimizer(momentum)


def loss_fn(model: nn.Layer, factor: paddle.Tensor) -> paddle.Tensor:
    return (model(paddle.full([3, 4], 0.5 + rank)) * factor).square().mean()


def factors(*kinds: str) -> list[paddle.Tensor]:
    """Finite on the first rank; on the second 1 or whatever a word like "inf" says."""
    return [paddle.to_tensor(float(kind) if rank else 1.0) for kind in kinds]


def steps(*kinds: str, **options: Any) -> list[Any]:
    """What came of steps on the second rank's ``kinds``, and what the weights hash to in the end."""
    model, optimizer = training()
    scaler = amp.GradScaler(64.0)
    step = amp.train_step(loss_fn, model, optimizer, policy="O1", scaler=scaler, **options)
    seen = []
    for factor in factors(*kinds):
        reason = step(factor).reason
        seen.append([reason, scaler.get_scale()])
    return [seen, digest(model)]


def by_hand(*kinds: str) -> list[Any]:
    model, optimizer = training()
    scaler = amp.GradScaler(64.0)
    seen = []
    for factor in factors(*kinds):
        scaler.scale(loss_fn(model, factor)).backward()
        applied = scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
        seen.append([applied, scaler.get_scale()])
    return [seen, digest(model)]


def by_values(*kinds: str) -> list[Any]:
    model, optimizer = training()
    scaler = amp.GradScaler(64.0)
    seen = []
    for factor in factors(*kinds):
        _, grads = amp.value_and_grad(loss_fn, model, factor, policy="O0", scaler=scaler)
        applied = scaler.step(optimizer, scaler.unscale(grads))
        scaler.update()
        seen.append([applied, scaler.get_scale()])
    return [seen, digest(model)]


def digest(model: nn.Layer) -> str:
    found = hashlib.blake2b(digest_size=8)
    for parameter in model.parameters():
        found.update(parameter.numpy().tobytes())
    return found.hexdigest()


def names_of_overflows() -> list[Any]:
    model, optimizer = training()
    step = amp.train_step(loss_fn, model, optimizer, policy="O1", name_overflows=True)
    (factor,) = factors("inf")
    result = step(factor)
    return [result.reason, sorted(result.overflows)]


def reductions_of_a_step() -> list[Any]:
    """Dtype and number of elements of each ``all_reduce`` in a step."""
    model, optimizer = training()
    step = amp.train_step(loss_fn, model, optimizer, policy="O1")
    seen, all_reduce = [], paddle.distributed.all_reduce

    def watched(tensor: paddle.Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append([str(tensor.dtype), tensor.numel().item()])
        return all_reduce(tensor, *args, **kwargs)

    paddle.distributed.all_reduce = watched
    try:
        step(*factors("1"))
    finally:
        paddle.distributed.all_reduce = all_reduce
    return seen


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except amp.AmpBridgeError as error:
        return str(error)
    return "none"


def clipped() -> None:
    model, optimizer = training()
    amp.train_step(loss_fn, model, optimizer, clip_norm=1.0)(*factors("1"))


def saved() -> None:
    model, optimizer = training()
    amp.train_step(loss_fn, model, optimizer).save(f"{folder}/saved")


def saved_by_rank() -> list[str]:
    """What the weights hash to after two steps, and after the second one again."""
    model, optimizer = training()
    step = amp.train_step(loss_fn, model, optimizer)
    path = f"{folder}/rank{paddle.distributed.get_rank()}.pdparams"
    one, other = factors("1", "0.5")
    step(one)
    paddle.save([model.state_dict(), optimizer.state_dict(), step.state_dict()], path)
    step(other)
    went_on = digest(model)
    states = paddle.load(path)
    for each, state in zip((model, optimizer), states[:2], strict=True):
        each.set_state_dict(state)
    step.load_state_dict(states[2])
    step(other)
    return [went_on, digest(model)]


backend = amp.backend("paddle")
pairs = itertools.product((FINITE, INF, NAN), repeat=2)
print(
    json.dumps(
        {
            "agreed": [[*pair, ranks.agree(pair[rank], None)] for pair in pairs],
            "steps": steps("1", "inf", "nan", "1"),
            "compiled": steps("1", "inf", "nan", "1", compile=True),
            "two finite steps": steps("1", "1"),
            "by hand": by_hand("1", "inf", "1"),
            "by values": by_values("1", "inf", "1"),
            "drop_step": steps("inf", "1", "1", "1", accumulate=2),
            "drop_microbatch": steps("inf", "1", "1", accumulate=2, on_overflow="drop_microbatch"),
            "names": names_of_overflows(),
            "reductions": reductions_of_a_step(),
            "clip_norm": error_of(clipped),
            "save": error_of(saved),
            "saved by rank": saved_by_rank(),
            "parameters": len(backend.parameters(training()[1])),
        }
    ),
    flush=True,
)
