"""Captioning, base size."""

import ml_collections
from ml_collections import ConfigDict as D


def get_config():
    config = ml_collections.ConfigDict()
    config.seed = 7

    config.model = D({"name": "encoder_decoder", "dim": 256, "heads": 8, "layers": 2, "vocab": 4096})
    config.dataset = D({"examples": 2048, "patches": 49, "length": 32})

    config.train = D()
    config.train.batch_size = 32
    config.train.steps = 20_000
    config.train.log_every = 50
    config.train.precision = "half"

    config.optimization = D(
        dict(
            name="adamw",
            learning_rate=3e-4,
            weight_decay=0.05,
            max_norm=0.0,
            loss_scale=D({"log2_initial": 15, "growth_steps": 2000}),
        )
    )
    # half precision: the scale begins lower, and gradients are clipped
    if config.train.precision == "half":
        config.optimization.max_norm = 1.0
        config.optimization.loss_scale.update({"log2_initial": 13, "growth_steps": 500})
    return config
