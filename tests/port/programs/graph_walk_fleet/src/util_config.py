"""User configurations, over the defaults of the cluster."""

import yaml

from config_fleet import defaults


class Config(dict):
    """Attributes; what is not set is None."""

    def __getattr__(self, key):
        if key.startswith("__"):
            raise AttributeError(key)
        return self.get(key)

    def __setattr__(self, key, value):
        self[key] = value


def to_config(values):
    config = Config()
    for key, value in values.items():
        config[key] = to_config(value) if isinstance(value, dict) else value
    return config


def prepare_config(config_file):
    with open(config_file, encoding="utf-8") as f:
        user_config = yaml.load(f, Loader=yaml.FullLoader)
    merged = dict(defaults)
    merged.update(user_config)
    return to_config(merged)
