import codecs
import os
from ast import literal_eval

import yaml

from seg.utils import logger

_INHERIT_KEY = '_inherited_'
_BASE_KEY = '_base_'


class Config(object):
    """
    Configuration parsing: the values of a file and its base files, and of the command line.

    Args:
        path (str): The path of config file, supports yaml format only.
        opts (list, optional): Use opts to update the key-value pairs of all options.
    """

    def __init__(self, path, learning_rate=None, batch_size=None, iters=None, opts=None):
        assert os.path.exists(path), 'Config path ({}) does not exist'.format(path)
        assert path.endswith('yml') or path.endswith('yaml'), 'Config file ({}) should be yaml'.format(path)
        self.dic = self._parse_from_yaml(path)
        self.dic = self.update_config_dict(
            self.dic,
            learning_rate=learning_rate,
            batch_size=batch_size,
            iters=iters,
            opts=opts)

    @property
    def batch_size(self):
        return self.dic.get('batch_size')

    @property
    def iters(self):
        return self.dic.get('iters')

    @property
    def model_cfg(self):
        return self.dic.get('model', {}).copy()

    @property
    def loss_cfg(self):
        return self.dic.get('loss', {}).copy()

    @property
    def optimizer_cfg(self):
        return self.dic.get('optimizer', {}).copy()

    @property
    def lr_scheduler_cfg(self):
        return self.dic.get('lr_scheduler', {}).copy()

    @property
    def train_dataset_cfg(self):
        return self.dic.get('train_dataset', {}).copy()

    @property
    def val_dataset_cfg(self):
        return self.dic.get('val_dataset', {}).copy()

    @classmethod
    def update_config_dict(cls, dic, *args, **kwargs):
        return update_config_dict(dic, *args, **kwargs)

    @classmethod
    def _parse_from_yaml(cls, path, *args, **kwargs):
        return parse_from_yaml(path, *args, **kwargs)


def parse_from_yaml(path):
    """Parse a yaml file and build config"""
    with codecs.open(path, 'r', 'utf-8') as file:
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
    """Merge dic to base_dic and return base_dic."""
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


def update_config_dict(dic, learning_rate=None, batch_size=None, iters=None, opts=None):
    """Update config"""
    # TODO: If the items to update are marked as anchors in the yaml file, all references change.
    if learning_rate:
        dic['lr_scheduler']['learning_rate'] = learning_rate
    if batch_size:
        dic['batch_size'] = batch_size
    if iters:
        dic['iters'] = iters
    if opts is not None:
        for item in opts:
            assert ('=' in item) and (len(item.split('=')) == 2), "--opts params should be key=value"
            key, value = item.split('=')
            if isinstance(value, str):
                try:
                    value = literal_eval(value)
                except (ValueError, SyntaxError):
                    logger.debug('%s stays text', value)
            key_list = key.split('.')
            tmp_dic = dic
            for subkey in key_list[:-1]:
                assert subkey in tmp_dic, "Can not update {}, because it is not in config.".format(key)
                tmp_dic = tmp_dic[subkey]
            tmp_dic[key_list[-1]] = value
    return dic
