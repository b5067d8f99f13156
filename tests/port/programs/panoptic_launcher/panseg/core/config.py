import codecs
import os

import paddle
import yaml


def make_default_config():
    return {"iters": 90000, "batch_size": 2, "lr_scheduler": {"learning_rate": 1e-4}}


def merge(base, other):
    """Keys of ``other`` over those of ``base``, section by section."""
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            if value.get("_inherited_", True):
                merge(base[key], value)
                continue
        base[key] = value
    return base


def parse_from_yaml(path):
    with codecs.open(path, "r", "utf-8") as file:
        dic = yaml.load(file, Loader=yaml.FullLoader)
    if "_base_" in dic:
        base_path = os.path.join(os.path.dirname(path), dic.pop("_base_"))
        dic = merge(parse_from_yaml(base_path), dic)
    return dic


class Config(object):
    """The values of a file, of its base files, and of the command line over both."""

    def __init__(self, path, default, learning_rate=None, batch_size=None, iters=None, opts=None):
        if not os.path.exists(path):
            raise FileNotFoundError("File {} does not exist".format(path))
        self.dic = merge(default, parse_from_yaml(path))
        if learning_rate:
            self.dic["lr_scheduler"]["learning_rate"] = learning_rate
        if batch_size:
            self.dic["batch_size"] = batch_size
        if iters:
            self.dic["iters"] = iters
        for item in opts or []:
            key, _, value = item.partition("=")
            *sections, last = key.split(".")
            section = self.dic
            for name in sections:
                section = section[name]
            section[last] = yaml.load(value, Loader=yaml.Loader)

    def build_lr(self):
        params = dict(self.dic["lr_scheduler"])
        name = params.pop("type", None)
        return getattr(paddle.optimizer.lr, name)(**params) if name else params["learning_rate"]

    def build_optimizer(self, model):
        params = dict(self.dic["optimizer"])
        name = params.pop("type")
        clip_cfg = params.pop("grad_clip_cfg", None)
        if clip_cfg is not None:
            clip_cfg = clip_cfg.copy()
            clip_name = clip_cfg.pop("name")
            params["grad_clip"] = getattr(paddle.nn, clip_name)(**clip_cfg)
        if name == "SGD":
            name = "Momentum" if "momentum" in params else "SGD"
        return getattr(paddle.optimizer, name)(
            learning_rate=self.build_lr(), parameters=model.parameters(), **params
        )
