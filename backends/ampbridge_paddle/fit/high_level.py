"""``paddle.Model`` (``fit``, ``train_batch``, ``evaluate``, ``predict``) in mixed precision.

Paddle's own ``amp_configs`` do nothing on a CPU, and its GradScaler has faults of its own (with NumPy
2.4 it raises at the first overflow). So the network is decorated, which holds wherever the model calls
it, and an adapter of Paddle's own kind scales the loss. All else is Paddle's.
"""

from __future__ import annotations

from typing import Any, Literal

import paddle

import ampbridge as amp
from ampbridge.adapters.process_setting import check_loop_of_others
from ampbridge.errors import ArgumentTypeError, UnsupportedError
from ampbridge.policies.policy import Policy
from ampbridge_paddle._private import method, private

_NativeAdapter: Any = private("paddle.hapi.model.DynamicGraphAdapter")


def prepare(
    model: paddle.Model,
    optimizer: Any = None,
    loss: Any = None,
    metrics: Any = None,
    *,
    policy: str | Policy = "O1",
    scaler: amp.GradScaler | Literal["auto"] | None = "auto",
) -> None:
    """``model.prepare(optimizer, loss, metrics)`` of a ``paddle.Model``, in mixed precision.

        model = paddle.Model(network)
        ampbridge_paddle.prepare(model, optimizer, paddle.nn.CrossEntropyLoss(), policy="O2")
        model.fit(data, accumulate_grad_batches=4)

    ``fit``, ``train_batch``, ``evaluate``, ``predict``, ``save`` and ``load`` are Paddle's own from then on.
    The network is decorated (see ``ampbridge.decorate``) wherever it is called, and ``scaler`` follows
    ampbridge's rule in full, its alarms included; ``save`` and ``load`` keep its state. The loss is
    computed in float32, from outputs in ``policy.output_dtype``. ``policy="O0"`` takes it all back.

    Args:
        model, optimizer, loss, metrics: as Paddle's own ``prepare`` takes them.
        scaler: a GradScaler; "auto" makes one where the policy needs it; None for none.

    Raises:
        UnsupportedError: for static graphs, and for what ``decorate`` refuses.
    """
    parsed = Policy.parse(policy)
    check_loop_of_others(parsed)
    if not isinstance(model, paddle.Model):
        raise ArgumentTypeError(
            f"prepare is for a paddle.Model, not {type(model).__name__}.\n"
            "Hint: ampbridge_paddle.prepare(paddle.Model(network), optimizer, loss)"
        )
    if not paddle.in_dynamic_mode():
        raise UnsupportedError(
            "A paddle.Model of static graphs is not supported.\nHint: paddle.disable_static()"
        )
    amp.decorate(model.network, optimizer, parsed)
    if scaler == "auto":
        scaler = amp.GradScaler() if parsed.needs_scaling else None
    model._adapter = _ScalingAdapter(model)
    model.prepare(optimizer, loss, metrics)
    model._scaler = scaler  # here Paddle's save() and load() look for it


class _ScalingAdapter(_NativeAdapter):
    """Paddle's adapter of a model, with our scaler and a decorated network."""

    def prepare(self) -> None:
        if method("DynamicGraphAdapter", self, "_amp_level") != "O0":
            raise UnsupportedError(
                "amp_configs for a model that ampbridge runs in mixed precision.\n"
                "Hint: ampbridge_paddle.prepare(model, optimizer, loss, policy='O0') first."
            )
        super().prepare()

    def train_batch(self, inputs: Any, labels: Any = None, update: bool = True) -> Any:
        """Train one batch. Without ``update`` its gradients are added to those of the next."""
        network = self.model.network
        network.train()
        self.mode = "train"
        inputs = _listed(inputs)
        self._input_info = private("paddle.hapi.model._update_input_info")(inputs)
        called = self.ddp_model if self._nranks > 1 else network
        outputs = _listed(called(*map(_tensor, inputs)))
        labels = [_tensor(label) for label in _listed(labels)]
        losses = _listed(method("Model", self.model, "_loss")(*outputs, *labels))
        scaler = method("Model", self.model, "_scaler") or amp.GradScaler(enabled=False)
        scaled = scaler.scale(paddle.add_n(losses))
        scaled.backward()
        if update:
            scaler.minimize(method("Model", self.model, "_optimizer"), scaled)
            network.clear_gradients()
        metrics = []
        for metric in method("Model", self.model, "_metrics"):
            computed = _listed(metric.compute(*outputs, *labels))
            arrays = [x.numpy() if isinstance(x, paddle.Tensor) else x for x in computed]
            metrics.append(metric.update(*arrays))
        values = [loss.numpy() for loss in losses]
        return (values, metrics) if metrics else values

    def load(self, pairs: Any, optimizer_state: Any, scaler_state: Any = None) -> None:
        """Load what ``save`` wrote, also in another dtype than the network holds."""
        network = self.model.network
        names = {id(x): name for name, x in network.state_dict(use_hook=False).items()}
        network.set_state_dict({names[id(x)]: value for x, value in pairs})
        super().load([], _unpickled(optimizer_state), scaler_state)


def _unpickled(state: Any) -> Any:
    """Make tensors of the pairs of name and value as which ``paddle.Model`` reads an optimizer's masters."""
    if isinstance(state, tuple):
        name, value = state
        tensor = paddle.to_tensor(value)
        tensor.name = name
        return tensor
    if isinstance(state, dict):
        return {key: _unpickled(value) for key, value in state.items()}
    return state


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _tensor(x: Any) -> Any:
    return x if isinstance(x, paddle.Tensor) else paddle.to_tensor(x)
