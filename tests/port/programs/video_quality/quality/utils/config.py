import os

import yaml


class AttrDict(dict):
    def __getattr__(self, key):
        return self[key]

    def __setattr__(self, key, value):
        self[key] = value


def create_attr_dict(config):
    for key, value in config.items():
        if isinstance(value, dict):
            config[key] = value = AttrDict(value)
            create_attr_dict(value)


def parse_config(cfg_file):
    with open(cfg_file, "r") as fopen:
        yaml_config = AttrDict(yaml.load(fopen, Loader=yaml.SafeLoader))
    create_attr_dict(yaml_config)
    return yaml_config


def override_config(config, options=None):
    for opt in options or []:
        key, _, value = opt.partition("=")
        *path, last = key.split(".")
        at = config
        for part in path:
            at = at[part]
        at[last] = yaml.safe_load(value)
    return config


def get_config(fname, overrides=None, show=True):
    assert os.path.exists(fname), "config file({}) is not exist".format(fname)
    config = parse_config(fname)
    override_config(config, overrides)
    if show:
        print(yaml.safe_dump(dict(config)))
    return config
