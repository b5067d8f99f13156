"""The defaults of all runs."""

import ml_collections


def get_config():
    config = ml_collections.ConfigDict()
    config.model = "ResNetS"
    config.learning_rate = 0.1
    config.momentum = 0.9
    config.batch_size = 256
    config.num_epochs = 90
    config.half_precision = True
    return config
