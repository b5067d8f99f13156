"""Hyperparameters that files and flags override."""

import ast
import copy

import tensorflow as tf
import yaml


def eval_str_fn(val):
    if val in {'true', 'false'}:
        return val == 'true'
    try:
        return ast.literal_eval(val)
    except (ValueError, SyntaxError):
        return val


class Config:
    """A config utility class."""

    def __init__(self, config_dict=None):
        self.update(config_dict)

    def __setattr__(self, k, v):
        self.__dict__[k] = Config(v) if isinstance(v, dict) else copy.deepcopy(v)

    def __getattr__(self, k):
        return self.__dict__[k]

    def __getitem__(self, k):
        return self.__dict__[k]

    def _update(self, config_dict, allow_new_keys=True):
        """Recursively update internal members."""
        if not config_dict:
            return
        for k, v in config_dict.items():
            if k not in self.__dict__:
                if allow_new_keys:
                    self.__setattr__(k, v)
                else:
                    raise KeyError('Key `{}` does not exist for overriding. '.format(k))
            elif isinstance(self.__dict__[k], Config) and isinstance(v, dict):
                self.__dict__[k]._update(v, allow_new_keys)
            else:
                self.__setattr__(k, v)

    def get(self, k, default_value=None):
        return self.__dict__.get(k, default_value)

    def update(self, config_dict):
        """Update members while allowing new keys."""
        self._update(config_dict, allow_new_keys=True)

    def override(self, config_dict_or_str, allow_new_keys=False):
        """Update members while disallowing new keys."""
        if isinstance(config_dict_or_str, str):
            if not config_dict_or_str:
                return
            elif '=' in config_dict_or_str:
                config_dict = self.parse_from_str(config_dict_or_str)
            elif config_dict_or_str.endswith('.yaml'):
                config_dict = self.parse_from_yaml(config_dict_or_str)
            else:
                raise ValueError('Invalid string {}, must end with .yaml or contains "=".'.format(config_dict_or_str))
        elif isinstance(config_dict_or_str, dict):
            config_dict = config_dict_or_str
        else:
            raise ValueError('Unknown value type: {}'.format(config_dict_or_str))
        self._update(config_dict, allow_new_keys)

    def parse_from_yaml(self, yaml_file_path):
        """Parses a yaml file and returns a dictionary."""
        with tf.io.gfile.GFile(yaml_file_path, 'r') as f:
            return yaml.load(f, Loader=yaml.FullLoader)

    def parse_from_str(self, config_str):
        pairs = [pair.split('=') for pair in config_str.split(',') if pair]
        return {k.strip(): eval_str_fn(v) for k, v in pairs}

    def as_dict(self):
        """Returns a dict representation."""
        return {k: v.as_dict() if isinstance(v, Config) else copy.deepcopy(v) for k, v in self.__dict__.items()}


def default_detection_configs():
    """Returns a default detection configs."""
    h = Config()

    # model name and input
    h.name = 'efficientdet-d1'
    h.image_size = 640
    h.num_classes = 90

    # optimization
    h.momentum = 0.9
    h.optimizer = 'sgd'  # can be 'adam' or 'sgd'.
    h.learning_rate = 0.08
    h.weight_decay = 4e-5
    h.num_epochs = 300
    h.clip_gradients_norm = 10.0

    # classification and localization loss
    h.alpha = 0.25
    h.gamma = 1.5
    h.delta = 0.1
    h.box_loss_weight = 50.0

    # precision
    h.mixed_precision = False  # If False, use float32.
    h.loss_scale = None  # set to 2**16 enables dynamic loss scale
    return h


efficientdet_model_param_dict = {
    'efficientdet-d0': dict(name='efficientdet-d0', image_size=512),
    'efficientdet-d1': dict(name='efficientdet-d1', image_size=640),
}


def get_detection_config(model_name):
    h = default_detection_configs()
    if model_name not in efficientdet_model_param_dict:
        raise ValueError('Unknown model name: {}'.format(model_name))
    h.override(efficientdet_model_param_dict[model_name])
    return h
