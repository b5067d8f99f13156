import codecs
import os
from ast import literal_eval

import yaml

_INHERIT_KEY = "_inherited_"
_BASE_KEY = "_base_"


class Config(object):
    def __init__(self, path, iters=None, opts=None):
        assert os.path.exists(path), "Config path ({}) does not exist".format(path)
        self.dic = self._parse_from_yaml(path)
        self.dic = update_config_dict(self.dic, iters=iters, opts=opts)

    @property
    def batch_size(self):
        return self.dic.get("batch_size")

    @property
    def iters(self):
        return self.dic.get("iters")

    @property
    def model_cfg(self):
        return self.dic.get("model", {}).copy()

    @property
    def optimizer_cfg(self):
        return self.dic.get("optimizer", {}).copy()

    @classmethod
    def _parse_from_yaml(cls, path):
        return parse_from_yaml(path)


def parse_from_yaml(path):
    with codecs.open(path, "r", "utf-8") as file:
        dic = yaml.load(file, Loader=yaml.FullLoader)
    if _BASE_KEY in dic:
        base_files = dic.pop(_BASE_KEY)
        if isinstance(base_files, str):
            base_files = [base_files]
        for bf in base_files:
            base_path = os.path.join(os.path.dirname(path), bf)
            base_dic = parse_from_yaml(base_path)
            dic = merge_config_dicts(dic, base_dic)
    return dic


def merge_config_dicts(dic, base_dic):
    base_dic = base_dic.copy()
    dic = dic.copy()
    if not dic.get(_INHERIT_KEY, True):
        dic.pop(_INHERIT_KEY)
        return dic
    for key, val in dic.items():
        if isinstance(val, dict) and key in base_dic:
            base_dic[key] = merge_config_dicts(val, base_dic[key])
        else:
            base_dic[key] = val
    return base_dic


def update_config_dict(dic, iters=None, opts=None):
    dic = dic.copy()
    if iters:
        dic["iters"] = iters
    if opts is not None:
        for item in opts:
            key, value = item.split("=")
            try:
                value = literal_eval(value)
            except ValueError:
                pass
            dic[key] = value
    return dic
