"""Layers over NumPy arrays: ``Module`` to subclass, and the usual ones.

    class Classifier(nn.Module):
        def __init__(self) -> None:
            self.first, self.second = nn.Linear(64, 96), nn.Linear(96, 10)

        def forward(self, x):
            return self.second(nn.relu(self.first(x)))

A parameter is a float32 array that the optimizer changes in place. While gradients are taken, a
layer that reads its ``weight`` finds it traced instead; see ``substituted``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from ampbridge.adapters import kept_calls
from ampbridge.adapters.nested import map_leaves
from ampbridge.adapters.scoped import Scoped
from ampbridge.errors import ArgumentError
from ampbridge.policies.policy import Policy
from ampbridge_numpy import functional
from ampbridge_numpy.autocast.casting import cast, region, value_of
from ampbridge_numpy.functional import *  # noqa: F403  # users find all of them in ``nn``
from ampbridge_numpy.functional import Array

__all__ = [
    "GELU",
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv2d",
    "Dropout",
    "Embedding",
    "Flatten",
    "LayerNorm",
    "Linear",
    "Module",
    "MultiHeadAttention",
    "Parameter",
    "ReLU",
    "Sequential",
    "Tanh",
]
__all__ += functional.__all__

FLOAT32_REGION = Policy("O0")

Rng = np.random.Generator | int | None
"""Where random weights come from: a generator, a seed, or None for fresh ones."""

# id of a parameter's array -> what modules read instead, in this thread or task.
_stand_ins: Scoped[Mapping[int, Any]] = Scoped("ampbridge_numpy parameters", MappingProxyType({}))


def substituted(stand_ins: Mapping[int, Any]) -> AbstractContextManager[None]:
    """A context in which modules read ``stand_ins[id(array)]`` instead of a parameter ``array``.

    No module is changed: other threads keep reading the arrays, and so does this one afterwards.
    """
    return _stand_ins.during({**_stand_ins.get(), **stand_ins})


def present(array: np.ndarray) -> Any:
    """What modules read at present as the parameter ``array``."""
    return _stand_ins.get().get(id(array), array)


# ids of the layers that are kept in float32, in this thread or task.
_kept: Scoped[frozenset[int]] = Scoped("ampbridge_numpy kept layers", frozenset())


def keeping(layers: Sequence[Module]) -> AbstractContextManager[None]:
    """A context in which ``layers``, and all modules below them, run in float32."""
    parts = (part for layer in layers for _, part in layer.named_modules())
    return _kept.during(_kept.get().union(map(id, parts)))


# id of a module -> its dotted name; and the name of the module that runs.
_names: Scoped[Mapping[int, str] | None] = Scoped("ampbridge_numpy names", None)
_called: Scoped[str] = Scoped("ampbridge_numpy called layer", "")


def named_calls(model: Module) -> AbstractContextManager[None]:
    """A context in which ``calling_layer`` knows the modules of ``model`` by name, for an observer."""
    names: dict[int, str] = {}
    for name, module in model.named_modules():
        names.setdefault(id(module), name)
    return _names.during(names)


def calling_layer() -> str:
    """The dotted name of the module whose ``forward`` is running; empty outside of them."""
    return _called.get()


def in_float32(forward: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
    """``forward(*inputs, **options)`` on float32 inputs, in a region of float32."""
    inputs, options = map_leaves(lambda x: cast(x, "float32"), (inputs, options))
    with region(FLOAT32_REGION):
        return forward(*inputs, **options)


class Parameter:
    """Marks an array as trainable when it is assigned to a module: ``self.w = Parameter(values)``.

    The module keeps a float32 copy (float64 stays float64), and ``self.w`` reads as that array.
    """

    def __init__(self, values: Any) -> None:
        values = np.asarray(values)
        self.array = np.array(values, np.float64 if values.dtype == np.float64 else np.float32)


class Module:
    """A model or a part of one. Subclasses assign parameters and modules, and write ``forward``.

    Lists and tuples of modules count as parts.
    """

    training: bool = True
    around_forward: Callable[..., Any] | None = None
    """If set, a call is ``around_forward(forward, *inputs, **options)``; ``amp.decorate`` sets it."""

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """What calling the module does."""
        raise NotImplementedError(f"{type(self).__name__} has no forward()")

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        call = self.forward
        if self.around_forward is not None:
            call = partial(self.around_forward, call)
        if id(self) in _kept.get():
            call = partial(in_float32, call)
            kept_calls.note(self)
        names = _names.get()
        if names is None:
            return call(*inputs, **options)
        with _called.during(names.get(id(self), "")):
            return call(*inputs, **options)

    def named_parameters(self) -> Iterator[tuple[str, np.ndarray]]:
        """Each parameter once, under its dotted name: the module's own first, then its parts'."""
        seen: set[int] = set()
        for prefix, module in self.named_modules():
            for name, array in module._own_parameters().items():
                if id(array) not in seen:
                    seen.add(id(array))
                    yield f"{prefix}.{name}" if prefix else name, array

    def parameters(self) -> list[np.ndarray]:
        """The arrays of ``named_parameters``, themselves."""
        return [array for _, array in self.named_parameters()]

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """The module itself under ``prefix``, and all below it under their dotted names."""
        yield prefix, self
        for name, value in vars(self).items():
            parts = enumerate(value) if isinstance(value, (list, tuple)) else [("", value)]
            for index, part in parts:
                if isinstance(part, Module):
                    dotted = (prefix, name, str(index))
                    yield from part.named_modules(".".join(filter(None, dotted)))

    def train(self, mode: bool = True) -> Module:
        """Put all modules into training (or, with False, evaluation) mode."""
        for _, module in self.named_modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        """``train(False)``."""
        return self.train(False)

    def _own_parameters(self) -> dict[str, np.ndarray]:
        own: dict[str, np.ndarray] = vars(self).setdefault("_parameters", {})
        return own

    def __setattr__(self, name: str, value: Any) -> None:
        own = self._own_parameters()
        if isinstance(value, Parameter):
            own[name] = value.array
        elif name in own:
            raise ArgumentError(
                f"{type(self).__name__}.{name} is a parameter; a value in its place would not be "
                f"trained.\nHint: module.{name}[...] = values, or nn.Parameter(values) for a new one."
            )
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        own = vars(self).get("_parameters", {})
        if name not in own:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return present(own[name])


def _uniform(rng: np.random.Generator, bound: float, *shape: int) -> Parameter:
    return Parameter(rng.uniform(-bound, bound, shape).astype(np.float32))


class Linear(Module):
    """``x @ weight + bias``: ``weight`` (in, out) and ``bias`` (out,), uniform in +-1/sqrt(in)."""

    weight: Array
    bias: Array

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, rng: Rng = None
    ) -> None:
        rng, bound = np.random.default_rng(rng), in_features**-0.5
        self.weight = _uniform(rng, bound, in_features, out_features)
        self.bias = _uniform(rng, bound, out_features) if bias else None

    def forward(self, x: Array) -> Array:
        return functional.linear(x, self.weight, self.bias)


class Conv2d(Module):
    """Convolution of (batch, in, height, width) with ``weight`` (out, in, size, size)."""

    weight: Array
    bias: Array

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
        *,
        rng: Rng = None,
    ) -> None:
        rng, bound = np.random.default_rng(rng), (in_channels * kernel_size**2) ** -0.5
        self.weight = _uniform(rng, bound, out_channels, in_channels, kernel_size, kernel_size)
        self.bias = _uniform(rng, bound, out_channels) if bias else None
        self.stride, self.padding = stride, padding

    def forward(self, x: Array) -> Array:
        return functional.conv2d(
            x, self.weight, self.bias, stride=self.stride, padding=self.padding
        )


class LayerNorm(Module):
    """Normalizes over the last axes, of ``shape``, then scales by ``weight`` and adds ``bias``."""

    weight: Array
    bias: Array

    def __init__(self, shape: int | Sequence[int], eps: float = 1e-5) -> None:
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.weight, self.bias = Parameter(np.ones(shape, "f")), Parameter(np.zeros(shape, "f"))
        self.eps = eps

    def forward(self, x: Array) -> Array:
        return functional.layer_norm(x, self.weight, self.bias, self.eps)


class _BatchNorm(Module):
    """Normalizes each channel, then scales and shifts it.

    Training uses the statistics of the batch, and moves ``running_mean`` and ``running_var`` towards
    them by ``momentum``. Evaluation uses these two.
    """

    weight: Array
    bias: Array

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        self.weight = Parameter(np.ones(channels, "f"))
        self.bias = Parameter(np.zeros(channels, "f"))
        self.running_mean, self.running_var = np.zeros(channels, "f"), np.ones(channels, "f")
        self.eps, self.momentum = eps, momentum

    def forward(self, x: Array) -> Array:
        if not self.training:
            running = self.running_mean, self.running_var
            return functional.batch_norm(x, self.weight, self.bias, *running, eps=self.eps)
        # Move the running statistics; the variance without bias, as torch keeps it.
        values = np.asarray(value_of(x), np.float32)
        axes, count = (0, *range(2, x.ndim)), x.size // x.shape[1]
        var = values.var(axis=axes) * (count / max(count - 1, 1))
        self.running_mean += self.momentum * (values.mean(axis=axes) - self.running_mean)
        self.running_var += self.momentum * (var - self.running_var)
        return functional.batch_norm(x, self.weight, self.bias, eps=self.eps)


class BatchNorm1d(_BatchNorm):
    """Batch normalization of (batch, channels) or (batch, channels, length)."""


class BatchNorm2d(_BatchNorm):
    """Batch normalization of (batch, channels, height, width)."""


class Dropout(Module):
    """In training each element is zero by probability ``p``, the others are divided by ``1 - p``.

    Which ones, ``rng`` says. A checkpoint does not hold where it stands.
    """

    def __init__(self, p: float = 0.5, *, rng: Rng = None) -> None:
        if not 0 <= p < 1:
            msg = f"Dropout got p={p!r}; it is a probability from 0 to below 1.\n"
            raise ArgumentError(msg + "Hint: nn.Dropout(0.5)")
        self.p, self.rng = p, np.random.default_rng(rng)

    def forward(self, x: Array) -> Array:
        return functional.dropout(x, self.p, self.rng) if self.training and self.p else x


class Embedding(Module):
    """One row of ``weight`` (count, width), normal, for each integer of the input."""

    weight: Array

    def __init__(self, count: int, width: int, *, rng: Rng = None) -> None:
        rng = np.random.default_rng(rng)
        self.weight = Parameter(rng.standard_normal((count, width), np.float32))

    def forward(self, indices: np.ndarray) -> Array:
        return functional.embedding(indices, self.weight)


class MultiHeadAttention(Module):
    """Attention of ``heads`` heads over (batch, tokens, width); self-attention by default.

    Parameters: ``weight`` and ``bias`` of ``query``, ``key``, ``value`` and ``output``, in order.
    """

    def __init__(self, width: int, heads: int, *, rng: Rng = None) -> None:
        if width % heads:
            raise ArgumentError(
                f"MultiHeadAttention got width={width} and heads={heads}; heads must divide width.\n"
                f"Hint: nn.MultiHeadAttention({heads * (width // heads or 1)}, {heads})"
            )
        rng = np.random.default_rng(rng)
        self.query, self.key = Linear(width, width, rng=rng), Linear(width, width, rng=rng)
        self.value, self.output = Linear(width, width, rng=rng), Linear(width, width, rng=rng)
        self.heads = heads

    def forward(
        self,
        query: Array,
        key: Array | None = None,
        value: Array | None = None,
        mask: np.ndarray | None = None,
        *,
        is_causal: bool = False,
    ) -> Array:
        """``key`` is ``query`` and ``value`` is ``key`` where they are not given."""
        key = query if key is None else key
        value = key if value is None else value
        projections = [self.query, self.key, self.value, self.output]
        return functional.multi_head_attention(
            query, key, value, projections, self.heads, mask, is_causal=is_causal
        )


class ReLU(Module):
    """``relu`` as a layer."""

    forward = staticmethod(functional.relu)


class GELU(Module):
    """``gelu`` as a layer."""

    forward = staticmethod(functional.gelu)


class Tanh(Module):
    """``tanh`` as a layer."""

    forward = staticmethod(functional.tanh)


class Flatten(Module):
    """``flatten`` as a layer."""

    forward = staticmethod(functional.flatten)


class Sequential(Module):
    """Modules, one after the other."""

    def __init__(self, *layers: Module) -> None:
        self.layers = list(layers)

    def forward(self, x: Array) -> Array:
        for layer in self.layers:
            x = layer(x)
        return x
