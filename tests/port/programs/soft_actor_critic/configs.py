"""Hyperparameters, by environment."""

DEFAULT = {
    "warmup_steps": 10000,
    "memory_size": int(1e6),
    "batch_size": 256,
    "gamma": 0.99,
    "tau": 0.005,
    "alpha": 0.2,
    "actor_lr": 3e-4,
    "critic_lr": 3e-4,
    "grad_norm": None,
    "amp": {
        "level": "O1",
        "dtype": "float16",
        "init_loss_scaling": 2.0**15,
        "incr_every_n_steps": 2000,
    },
}

ENV_CONFIGS = {
    "HalfCheetah-v4": {
        "train_total_steps": int(3e6),
        "grad_norm": 40.0,
        "amp": {
            "level": "O1",
            "dtype": "float16",
            "init_loss_scaling": 2.0**12,
            "incr_every_n_steps": 500,
        },
    },
    "Humanoid-v4": {
        "train_total_steps": int(1e7),
        "alpha": 0.05,
        "grad_norm": 10.0,
    },
}


def get_config(env_name):
    config = {"train_total_steps": int(1e6), **DEFAULT}
    config.update(ENV_CONFIGS.get(env_name, {}))
    return config
