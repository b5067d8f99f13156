"""Configuration as attributes, and registries of what it names."""

from ast import literal_eval

import yaml


class AttrDict(dict):
    def __getattr__(self, key):
        try:
            return self[key]
        except KeyError:
            raise AttributeError(key)

    def __setattr__(self, key, value):
        self[key] = value


def create_attr_dict(yaml_config):
    for key, value in yaml_config.items():
        if type(value) is dict:
            yaml_config[key] = value = AttrDict(value)
        if isinstance(value, AttrDict):
            create_attr_dict(yaml_config[key])
        else:
            yaml_config[key] = value


def get_config(fname, overrides=None):
    with open(fname) as f:
        config = AttrDict(yaml.load(f, Loader=yaml.SafeLoader))
    create_attr_dict(config)
    for opt in overrides or []:
        key, value = opt.split("=")
        where = config
        *path, last = key.split(".")
        for name in path:
            where = where[name]
        try:
            where[last] = literal_eval(value)
        except (ValueError, SyntaxError):
            where[last] = value
    return config


class Registry:
    def __init__(self, name):
        self._name = name
        self._obj_map = {}

    def register(self):
        def deco(func_or_class):
            self._obj_map[func_or_class.__name__] = func_or_class
            return func_or_class

        return deco

    def get(self, name):
        if name not in self._obj_map:
            raise KeyError(f"No object named '{name}' found in '{self._name}' registry!")
        return self._obj_map[name]


def build_from_config(cfg, registry, default_args=None):
    args = dict(cfg)
    for name, value in (default_args or {}).items():
        args.setdefault(name, value)
    return registry.get(args.pop("name"))(**args)


MODELS = Registry("MODEL")
NETWORKS = Registry("NETWORK")
CRITERIONS = Registry("CRITERION")
