"""Mixed precision for JAX: modules of flax nnx, trained with optax, and models of Keras with its own.

    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    step = amp.train_step(loss_fn, model, optimizer, policy="O1:bfloat16")

``nnx.Optimizer`` does not know its model; a step does. A loop by hand takes an ``Optimizer`` of this
package, which is one that knows it. ``Stateful`` makes a module of a model of Equinox, or of linen's
parameters.
"""

from __future__ import annotations

from ampbridge_jax.model.stateful import Stateful
from ampbridge_jax.optimizers import Optimizer
from ampbridge_jax.step.pure import pure, take

__all__ = ["Optimizer", "Stateful", "pure", "take"]
