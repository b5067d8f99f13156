"""YAML files with `_base_`, and the objects that they describe by `type`."""

import os

import paddle
import yaml

COMPONENTS = {}


def add_component(cls):
    COMPONENTS[cls.__name__] = cls
    return cls


class Config:
    def __init__(self, *, path):
        self.dic = self._parse_from_yaml(path)
        self._model = None

    def _parse_from_yaml(self, path):
        with open(path, encoding="utf-8") as file:
            dic = yaml.safe_load(file)
        base = dic.pop("_base_", None)
        if base is None:
            return dic
        return self._merge(dic, self._parse_from_yaml(os.path.join(os.path.dirname(path), base)))

    def _merge(self, dic, base):
        """``dic`` above ``base``; a section with ``_inherited_: False`` takes nothing of its base."""
        if not dic.pop("_inherited_", True):
            return dic
        merged = dict(base)
        for key, value in dic.items():
            if isinstance(value, dict) and isinstance(base.get(key), dict):
                merged[key] = self._merge(value, base[key])
            elif isinstance(value, dict):
                merged[key] = self._merge(value, {})
            else:
                merged[key] = value
        return merged

    def update(self, batch_size=None, iters=None, learning_rate=None):
        if batch_size:
            self.dic["batch_size"] = batch_size
        if iters:
            self.dic["iters"] = iters
        if learning_rate:
            self.dic["lr_scheduler"]["learning_rate"] = learning_rate

    def to_dict(self):
        return dict(self.dic)

    def _load_object(self, obj, **extra):
        if isinstance(obj, dict) and "type" in obj:
            arguments = {key: self._load_object(value) for key, value in obj.items() if key != "type"}
            return self._find(obj["type"])(**arguments, **extra)
        return obj

    @staticmethod
    def _find(name):
        if name in COMPONENTS:
            return COMPONENTS[name]
        for module in (paddle.optimizer, paddle.optimizer.lr, paddle.nn):
            if hasattr(module, name):
                return getattr(module, name)
        raise RuntimeError(f"{name} was not registered")

    @property
    def model(self):
        if self._model is None:
            self._model = self._load_object(self.dic["model"])
        return self._model

    @property
    def optimizer(self):
        schedule = self._load_object(self.dic["lr_scheduler"])
        return self._load_object(
            self.dic["optimizer"], learning_rate=schedule, parameters=self.model.parameters()
        )
