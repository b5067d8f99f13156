"""Configuration, and the scaler that the engine makes."""

import logging
import os
from ast import literal_eval

import paddle
import yaml
from paddle.amp import GradScaler as FrameworkGradScaler

logger = logging.getLogger(__name__)


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
        if isinstance(value, str):
            try:
                value = literal_eval(value)
            except (ValueError, SyntaxError):
                pass
        if isinstance(value, AttrDict):
            create_attr_dict(yaml_config[key])
        else:
            yaml_config[key] = value


def override(config, keys, value):
    if len(keys) == 1:
        try:
            value = literal_eval(value)
        except (ValueError, SyntaxError):
            pass
        config[keys[0]] = value
    else:
        override(config.setdefault(keys[0], AttrDict()), keys[1:], value)


def get_config(fname, overrides=None):
    assert os.path.exists(fname), f"config file({fname}) is not exist"
    with open(fname) as f:
        config = AttrDict(yaml.load(f, Loader=yaml.SafeLoader))
    create_attr_dict(config)
    for opt in overrides or []:
        pair = opt.split("=")
        assert len(pair) == 2, f"option {opt} should be key=value"
        override(config, pair[0].split("."), pair[1])
    return config


class GradScaler(FrameworkGradScaler):
    """Paddle's scaler with the defaults of our recipes; it counts the steps that it skips."""

    def __init__(self,
                 enable=True,
                 init_loss_scaling=2.**10,
                 incr_ratio=2.0,
                 decr_ratio=0.5,
                 incr_every_n_steps=1000,
                 decr_every_n_nan_or_inf=2,
                 use_dynamic_loss_scaling=True):
        super(GradScaler, self).__init__(enable, init_loss_scaling, incr_ratio,
                                         decr_ratio, incr_every_n_steps,
                                         decr_every_n_nan_or_inf,
                                         use_dynamic_loss_scaling)
        self.skipped = 0

    @paddle.no_grad()
    def step(self, optimizer):
        super(GradScaler, self).step(optimizer)
        if self._enable and bool(self._found_inf):
            self.skipped += 1
            logger.warning("step %d skipped, loss scale %s", self.skipped, self._scale)
