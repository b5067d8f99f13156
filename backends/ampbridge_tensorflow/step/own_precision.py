"""Keras' own mixed policies, noticed where layers of a model have them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import keras

from ampbridge.adapters.backend import Model, OwnPrecisionNotice
from ampbridge_tensorflow.model.fitted import is_ours
from ampbridge_tensorflow.model.model_layers import layers


def noticed(model: Model, notice: OwnPrecisionNotice) -> AbstractContextManager[None]:
    """See ``Backend.noticing_own_precision``. Layers keep the policy under which they were made."""
    first: dict[str, str] = {}
    for part in (each.layer for each in layers(model)):
        policy = part.dtype_policy if isinstance(part, keras.Layer) else None
        if policy is not None and policy.name.startswith("mixed_") and not is_ours(policy):
            first.setdefault(part.compute_dtype, part.name)
    for dtype, name in sorted(first.items()):
        what = f"keras.config.set_dtype_policy('mixed_{dtype}'), under which {name!r} was made,"
        notice(what, dtype, counts=True)
    return nullcontext()
