import argparse
import copy
import os
from ast import literal_eval

import paddle.distributed as dist
import yaml

from fleetgpt.utils.log import logger


class AttrDict(dict):
    def __getattr__(self, key):
        return self[key]

    def __setattr__(self, key, value):
        if key in self.__dict__:
            self.__dict__[key] = value
        else:
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
    """Load a config file, over the one that it is based on."""

    def _update_dic(dic, base_dic):
        base_dic = base_dic.copy()
        dic = dic.copy()
        if dic.get("_inherited_", True) is False:
            dic.pop("_inherited_")
            return dic
        for key, val in dic.items():
            if isinstance(val, dict) and key in base_dic:
                base_dic[key] = _update_dic(val, base_dic[key])
            else:
                base_dic[key] = val
        return base_dic

    def _parse_from_yaml(path):
        with open(path, "r") as file:
            dic = yaml.load(file, Loader=yaml.FullLoader)
        if "_base_" in dic:
            cfg_dir = os.path.dirname(path)
            base_path = os.path.join(cfg_dir, dic.pop("_base_"))
            base_dic = _parse_from_yaml(base_path)
            dic = _update_dic(dic, base_dic)
        return dic

    yaml_dict = _parse_from_yaml(cfg_file)
    yaml_config = AttrDict(yaml_dict)
    create_attr_dict(yaml_config)
    return yaml_config


def override(dl, ks, v):
    """Put a value where a path of keys leads."""
    if len(ks) == 1:
        if ks[0] not in dl:
            logger.warning("a new field (%s) detected!", ks[0])
        dl[ks[0]] = literal_eval(v) if v[:1] in "0123456789-[{TFN" else v
    else:
        override(dl[ks[0]], ks[1:], v)


def override_config(config, options=None):
    if options is not None:
        for opt in options:
            assert "=" in opt, "option({}) should contain a = to separate key and value".format(opt)
            key, value = opt.split("=", 1)
            override(config, key.split("."), value)
    return config


def process_global_configs(config):
    """Batch sizes that follow from each other."""
    world = dist.get_world_size()
    global_batch_size = config["Global"]["global_batch_size"]
    local_batch_size = config["Global"]["local_batch_size"]
    if global_batch_size is None:
        config["Global"]["global_batch_size"] = local_batch_size * world
    elif local_batch_size is None:
        assert global_batch_size % world == 0
        config["Global"]["local_batch_size"] = global_batch_size // world


def get_config(fname, overrides=None, show=False):
    """Read config from file, and what the command line says over it."""
    assert os.path.exists(fname), "config file({}) is not exist".format(fname)
    config = parse_config(fname)
    override_config(config, overrides)
    process_global_configs(config)
    create_attr_dict(config)
    if show:
        print_config(config)
    return config


def print_dict(d, delimiter=0):
    for key, value in sorted(d.items()):
        if isinstance(value, dict):
            logger.info("%s%s : ", delimiter * " ", key)
            print_dict(value, delimiter + 4)
        else:
            logger.info("%s%s : %s", delimiter * " ", key, value)


def print_config(config):
    print_dict(config)


def parse_args():
    parser = argparse.ArgumentParser("train script")
    parser.add_argument(
        "-c", "--config", type=str, default="configs/config.yaml", help="config file path"
    )
    parser.add_argument(
        "-o", "--override", action="append", default=[], help="config options to be overridden"
    )
    return parser.parse_args()
