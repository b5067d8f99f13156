import os

import yaml

BASE_KEY = "_BASE_"


class AttrDict(dict):
    def __init__(self, **kwargs):
        super(AttrDict, self).__init__()
        super(AttrDict, self).update(kwargs)

    def __getattr__(self, key):
        if key in self:
            return self[key]
        raise AttributeError("object has no attribute '{}'".format(key))

    def __setattr__(self, key, value):
        self[key] = value

    def copy(self):
        new_dict = AttrDict()
        for k, v in self.items():
            new_dict.update({k: v})
        return new_dict


global_config = AttrDict()


def _load_config_with_base(file_path):
    with open(file_path) as f:
        file_cfg = yaml.load(f, Loader=yaml.Loader)
    if BASE_KEY in file_cfg:
        all_base_cfg = AttrDict()
        for base_yml in list(file_cfg[BASE_KEY]):
            base_yml = os.path.join(os.path.dirname(file_path), base_yml)
            base_cfg = _load_config_with_base(base_yml)
            all_base_cfg = merge_config(base_cfg, all_base_cfg)
        del file_cfg[BASE_KEY]
        return merge_config(file_cfg, all_base_cfg)
    return file_cfg


def load_config(file_path):
    cfg = _load_config_with_base(file_path)
    cfg["filename"] = os.path.splitext(os.path.split(file_path)[-1])[0]
    merge_config(cfg)
    return global_config


def dict_merge(dct, merge_dct):
    for k, v in merge_dct.items():
        if k in dct and isinstance(dct[k], dict) and isinstance(merge_dct[k], dict):
            dict_merge(dct[k], merge_dct[k])
        else:
            dct[k] = merge_dct[k]
    return dct


def merge_config(config, another_cfg=None):
    global global_config
    dct = another_cfg or global_config
    return dict_merge(dct, config)


def register(cls):
    global_config[cls.__name__] = cls
    return cls


def create(cls_or_name, **kwargs):
    return global_config[cls_or_name](**kwargs)
