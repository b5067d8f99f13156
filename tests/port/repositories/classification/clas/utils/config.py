import argparse
import copy
from ast import literal_eval

import yaml


class AttrDict(dict):
    def __getattr__(self, key):
        return self[key]

    def __setattr__(self, key, value):
        self[key] = value

    def __deepcopy__(self, content):
        return AttrDict(copy.deepcopy(dict(self)))


def create_attr_dict(yaml_config):
    for key, value in yaml_config.items():
        if type(value) is dict:
            yaml_config[key] = value = AttrDict(value)
        if isinstance(value, str):
            try:
                value = literal_eval(value)
            except BaseException:
                pass
        if isinstance(value, AttrDict):
            create_attr_dict(yaml_config[key])
        else:
            yaml_config[key] = value


def parse_config(cfg_file):
    with open(cfg_file, "r") as fopen:
        yaml_config = AttrDict(yaml.load(fopen, Loader=yaml.SafeLoader))
    create_attr_dict(yaml_config)
    return yaml_config


def override(dl, ks, v):
    def str2num(v):
        try:
            return eval(v)
        except Exception:
            return v

    if len(ks) == 1:
        dl[ks[0]] = str2num(v)
    else:
        override(dl[ks[0]], ks[1:], v)


def override_config(config, options=None):
    if options is not None:
        for opt in options:
            key, value = opt.split("=")
            override(config, key.split("."), value)
    return config


def get_config(fname, overrides=None, show=False):
    config = parse_config(fname)
    override_config(config, overrides)
    if show:
        print(config)
    return config


def parse_args():
    parser = argparse.ArgumentParser("image classification train script")
    parser.add_argument("-c", "--config", type=str, default="configs/config.yaml")
    parser.add_argument("-o", "--override", action="append", default=[])
    return parser.parse_args()
