"""The engine builds everything that a configuration describes."""

import copy
import random

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import nn

from . import loops, models  # noqa: F401, loops by eval
from .core import GradScaler


def build_optimizer(config, lr, model):
    config = copy.deepcopy(config)
    optim_name = config.pop("name")
    grad_clip = None
    grad_clip_config = config.pop("grad_clip", None)
    if grad_clip_config is not None:
        grad_clip_name = grad_clip_config.pop("name", "ClipGradByGlobalNorm")
        grad_clip = getattr(nn, grad_clip_name)(**grad_clip_config)
    trainable = [p for p in model.parameters() if not p.stop_gradient]
    optim = getattr(paddle.optimizer, optim_name)
    return optim(learning_rate=lr, parameters=trainable, grad_clip=grad_clip, **config)


class Engine:
    def __init__(self, config, mode="train"):
        assert mode in ["train", "eval", "export"]
        self.mode = mode
        self.config = config
        self.accum_steps = config["Global"].get("accum_steps", 1)
        assert isinstance(self.accum_steps, int) and self.accum_steps > 0

        self.config["Global"]["distributed"] = dist.get_world_size() != 1
        if self.config["Global"]["distributed"]:
            dist.init_parallel_env()
        seed = self.config["Global"].get("seed", False)
        if seed:
            paddle.seed(seed)
            np.random.seed(seed)
            random.seed(seed)
        paddle.set_device(self.config["Global"]["device"])

        # FP16 training
        self.fp16 = True if "FP16" in self.config else False
        config_fp16 = self.config.get("FP16", {})
        assert config_fp16 is not None
        self.fp16_level = config_fp16.get("level", "O2")
        assert self.fp16_level in ["O0", "O1", "O2"]
        if self.fp16 and self.fp16_level == "O0":
            self.fp16 = False
        self.fp16_custom_white_list = config_fp16.get("fp16_custom_white_list", None)
        self.fp16_custom_black_list = config_fp16.get("fp16_custom_black_list", None)

        if self.fp16 and self.fp16_level == "O2":
            default_dtype = paddle.get_default_dtype()
            paddle.set_default_dtype("float16")

        self.model = models.build_model(self.config["Model"])

        config_gradscaler = config_fp16.get("GradScaler", {})
        self.scaler = GradScaler(enable=self.fp16, **config_gradscaler)

        if self.fp16 and self.fp16_level == "O2":
            paddle.set_default_dtype(default_dtype)

        lr_cfg = self.config["LRScheduler"]
        self.lr_scheduler = paddle.optimizer.lr.CosineAnnealingDecay(
            lr_cfg["learning_rate"], T_max=self.config["Global"]["epochs"])
        self.optimizer = build_optimizer(self.config["Optimizer"], self.lr_scheduler, self.model)

        if self.config["Global"]["distributed"]:
            self.model = paddle.DataParallel(self.model)
        train_loop_name = self.config["Global"].get("train_loop", "EpochLoop")
        self.train_loop = eval("loops.{}".format(train_loop_name))(
            self, epochs=self.config["Global"]["epochs"])

    def train(self):
        assert self.mode == "train"
        self.train_loop.run()
