"""All options with their defaults."""

import os

from yacs.config import CfgNode as _CfgNode

BASE_KEY = "_BASE_"


class CfgNode(_CfgNode):
    """A node whose files may have a base."""

    def merge_from_file(self, cfg_filename):
        loaded = self._load_with_base(cfg_filename)
        self.merge_from_other_cfg(type(self)(loaded))

    @classmethod
    def _load_with_base(cls, filename):
        with open(filename) as f:
            cfg = cls.load_cfg(f)
        base = cfg.pop(BASE_KEY, None)
        if base is None:
            return cfg
        merged = cls._load_with_base(os.path.join(os.path.dirname(filename), base))
        merge_a_into_b(cfg, merged)
        return merged


def merge_a_into_b(a, b):
    for k, v in a.items():
        if isinstance(v, dict) and isinstance(b.get(k), dict):
            merge_a_into_b(v, b[k])
        else:
            b[k] = v


CN = CfgNode

_C = CN()
_C.SEED = 42
_C.OUTPUT_DIR = "./output"

_C.MODEL = CN()
_C.MODEL.DEVICE = "cuda"
_C.MODEL.WIDTH = 64
_C.MODEL.NUM_CLASSES = 80
_C.MODEL.NUM_STAGES = 1

_C.INPUT = CN()
_C.INPUT.SIZE = 800

_C.SOLVER = CN()
_C.SOLVER.OPTIMIZER = "SGD"
_C.SOLVER.MAX_ITER = 40000
_C.SOLVER.BASE_LR = 0.001
_C.SOLVER.MOMENTUM = 0.9
_C.SOLVER.WEIGHT_DECAY = 0.0001
_C.SOLVER.STEPS = (30000,)
_C.SOLVER.GAMMA = 0.1
_C.SOLVER.CHECKPOINT_PERIOD = 5000
_C.SOLVER.IMS_PER_BATCH = 16

# Gradient clipping
_C.SOLVER.CLIP_GRADIENTS = CN({"ENABLED": False})
# Type of gradient clipping, currently 2 values are supported:
# - "value": the absolute values of elements of each gradients are clipped
# - "norm": the norm of the gradient for each parameter is clipped thus
#   affecting all elements in the parameter
_C.SOLVER.CLIP_GRADIENTS.CLIP_TYPE = "value"
# Maximum absolute value used for clipping gradients
_C.SOLVER.CLIP_GRADIENTS.CLIP_VALUE = 1.0
_C.SOLVER.CLIP_GRADIENTS.NORM_TYPE = 2.0

# Enable automatic mixed precision for training
_C.SOLVER.AMP = CN({"ENABLED": False})


def get_cfg():
    """Get a copy of the default config."""
    return _C.clone()
