"""Keras' own mixed policies, noticed where layers of a model have them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import keras

from ampbridge.adapters.backend import Model, OwnPrecisionNotice
from ampbridge_tensorflow.model.fitted import is_ours
from ampbridge_tensorflow.model.model_layers import layers


def noticed(model: Model, notice: OwnPrecisionNotice) -> AbstractContextManager[None]:
    """See ``Backend.noticing_own_precision``. Layers keep the policy under which they were made."""
    parts = [part.layer for part in layers(model) if isinstance(part.layer, keras.Layer)]
    mixed = [
        part
        for part in parts
        if part.dtype_policy.name.startswith("mixed_") and not is_ours(part.dtype_policy)
    ]
    for dtype in sorted({part.compute_dtype for part in mixed}):
        first = next(part.name for part in mixed if part.compute_dtype == dtype)
        what = f"keras.config.set_dtype_policy('mixed_{dtype}'), under which {first!r} was made,"
        notice(what, dtype, counts=True)
    return nullcontext()
