"""The global configuration, and the modules that it names."""

import os

import yaml


class AttrDict(dict):
    """One level of attributes."""

    def __getattr__(self, key):
        if key in self:
            return self[key]
        raise AttributeError(f"object has no attribute '{key}'")

    def __setattr__(self, key, value):
        self[key] = value


global_config = AttrDict()
registered = {}

BASE_KEY = "_BASE_"


def _load_config_with_base(file_path):
    with open(file_path) as f:
        file_cfg = yaml.load(f, Loader=yaml.Loader)
    if BASE_KEY in file_cfg:
        all_base_cfg = AttrDict()
        for base_yml in list(file_cfg[BASE_KEY]):
            if not base_yml.startswith("/"):
                base_yml = os.path.join(os.path.dirname(file_path), base_yml)
            all_base_cfg = merge_config(_load_config_with_base(base_yml), all_base_cfg)
        del file_cfg[BASE_KEY]
        return merge_config(file_cfg, all_base_cfg)
    return file_cfg


def load_config(file_path):
    cfg = _load_config_with_base(file_path)
    cfg["filename"] = os.path.splitext(os.path.basename(file_path))[0]
    merge_config(cfg)
    return global_config


def dict_merge(dct, merge_dct):
    for k, v in merge_dct.items():
        if k in dct and isinstance(dct[k], dict) and isinstance(v, dict):
            dict_merge(dct[k], v)
        else:
            dct[k] = v
    return dct


def merge_config(config, another_cfg=None):
    """Into another configuration, or into the global one."""
    dct = global_config if another_cfg is None else another_cfg
    return dict_merge(dct, config)


def register(cls):
    if cls.__name__ in registered:
        raise ValueError(f"Module class already registered: {cls.__name__}")
    registered[cls.__name__] = cls
    return cls


def create(name, **kwargs):
    """A module by its name, with the arguments that the configuration has under that name."""
    if name not in registered:
        raise ValueError(f"The module {name} is not registered")
    cls_kwargs = dict(global_config.get(name) or {})
    cls_kwargs.update(kwargs)
    return registered[name](**cls_kwargs)
