"""Settings: those of default.yaml, then those that a trainer is made with."""

from pathlib import Path
from types import SimpleNamespace

import yaml

DEFAULT_CFG_PATH = Path(__file__).resolve().parent / "default.yaml"
with open(DEFAULT_CFG_PATH, encoding="utf-8") as f:
    DEFAULT_CFG_DICT = yaml.safe_load(f)


class IterableSimpleNamespace(SimpleNamespace):
    def __iter__(self):
        return iter(vars(self).items())

    def get(self, key, default=None):
        return getattr(self, key, default)


DEFAULT_CFG = IterableSimpleNamespace(**DEFAULT_CFG_DICT)


def cfg2dict(cfg):
    if isinstance(cfg, (str, Path)):
        with open(cfg, encoding="utf-8") as f:
            return yaml.safe_load(f)
    return dict(cfg) if isinstance(cfg, IterableSimpleNamespace) else cfg


def get_cfg(cfg=DEFAULT_CFG_DICT, overrides=None):
    cfg = cfg2dict(cfg)
    if overrides:
        unknown = set(overrides) - set(cfg)
        if unknown:
            raise SyntaxError(f"{sorted(unknown)} are no settings")
        cfg = {**cfg, **overrides}
    return IterableSimpleNamespace(**cfg)
