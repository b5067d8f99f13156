"""One net in five frameworks, sound and with a mistake each, recorded to files.

python aligned_nets.py FRAMEWORK FOLDER: writes FOLDER/FRAMEWORK-MISTAKE.npz; all but NumPy take the weights
of NumPy's recording.

    embed     linear (4 -> 6)
    norm      layer norm; mistake "epsilon": 1e-3 for 1e-5
    widen     linear (6 -> 6); mistake "transposed": of the input with rows and columns exchanged
    gelu      mistake "dtype": of its input in float32
    narrow    linear (6 -> 2), mean of squares
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from ampbridge import lens

MISTAKES = ("sound", "epsilon", "transposed", "dtype")

X = np.random.default_rng(0).normal(0, 0.1, (5, 6, 4)).astype(np.float32)


def numpy_net(mistake: str) -> tuple[Any, Any]:
    import autograd.numpy as anp

    from ampbridge_numpy import functional, nn

    class Net(nn.Module):
        def __init__(self) -> None:
            self.embed, self.widen, self.narrow = (
                nn.Linear(*sizes, rng=seed) for seed, sizes in enumerate([(4, 6), (6, 6), (6, 2)])
            )
            self.norm = nn.LayerNorm(6, eps=1e-3 if mistake == "epsilon" else 1e-5)

        def forward(self, x: Any) -> Any:
            x = self.norm(self.embed(x))
            x = self.widen(anp.swapaxes(x, 1, 2) if mistake == "transposed" else x)
            return self.narrow(functional.gelu(x.astype("float32") if mistake == "dtype" else x))

    return Net(), lambda model, x: anp.mean(model(x) ** 2)


def torch_net(mistake: str) -> tuple[Any, Any]:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.widen = nn.Linear(4, 6), nn.Linear(6, 6)
            self.norm = nn.LayerNorm(6, eps=1e-3 if mistake == "epsilon" else 1e-5)
            self.narrow = nn.Linear(6, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.norm(self.embed(x))
            x = self.widen(x.transpose(1, 2) if mistake == "transposed" else x)
            return self.narrow(nn.functional.gelu(x.float() if mistake == "dtype" else x))

    return Net(), lambda model, x: model(x).square().mean()


def tensorflow_net(mistake: str) -> tuple[Any, Any]:
    import keras
    import tensorflow as tf

    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.widen = keras.layers.Dense(6), keras.layers.Dense(6)
            self.norm = keras.layers.LayerNormalization(
                epsilon=1e-3 if mistake == "epsilon" else 1e-5
            )
            self.narrow = keras.layers.Dense(2)

        def call(self, x: tf.Tensor) -> tf.Tensor:
            x = self.norm(self.embed(x))
            x = self.widen(tf.transpose(x, (0, 2, 1)) if mistake == "transposed" else x)
            x = tf.cast(x, "float32") if mistake == "dtype" else x
            return self.narrow(tf.nn.gelu(x))

    model = Net()
    model(X)
    return model, lambda model, x: tf.reduce_mean(tf.square(model(x)))


def paddle_net(mistake: str) -> tuple[Any, Any]:
    import paddle
    from paddle import nn

    class Net(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.widen = nn.Linear(4, 6), nn.Linear(6, 6)
            self.norm = nn.LayerNorm(6, epsilon=1e-3 if mistake == "epsilon" else 1e-5)
            self.narrow = nn.Linear(6, 2)

        def forward(self, x: paddle.Tensor) -> paddle.Tensor:
            x = self.norm(self.embed(x))
            x = self.widen(x.transpose((0, 2, 1)) if mistake == "transposed" else x)
            x = x.astype("float32") if mistake == "dtype" else x
            return self.narrow(nn.functional.gelu(x))

    return Net(), lambda model, x: paddle.mean(paddle.square(model(x)))


def jax_net(mistake: str) -> tuple[Any, Any]:
    import jax
    import jax.numpy as jnp
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self) -> None:
            rngs = nnx.Rngs(0)
            self.embed, self.widen = nnx.Linear(4, 6, rngs=rngs), nnx.Linear(6, 6, rngs=rngs)
            epsilon = 1e-3 if mistake == "epsilon" else 1e-5
            self.norm = nnx.LayerNorm(6, epsilon=epsilon, rngs=rngs)
            self.narrow = nnx.Linear(6, 2, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            x = self.norm(self.embed(x))
            x = self.widen(jnp.swapaxes(x, 1, 2) if mistake == "transposed" else x)
            x = x.astype("float32") if mistake == "dtype" else x
            return self.narrow(jax.nn.gelu(x, approximate=False))

    return Net(), lambda model, x: jnp.mean(jnp.square(model(x)))


def main(framework: str, folder: Path) -> None:
    net = {
        "numpy": numpy_net,
        "torch": torch_net,
        "tensorflow": tensorflow_net,
        "paddle": paddle_net,
        "jax": jax_net,
    }[framework]
    first = folder / "numpy-sound.npz"
    for mistake in MISTAKES:
        model, loss_fn = net(mistake)
        weights = lens.Recording.load(first) if first.exists() else None
        path = folder / f"{framework}-{mistake}.npz"
        lens.record(loss_fn, model, X, policy="O1", weights=weights).save(path)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
