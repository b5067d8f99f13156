"""Compression without the training code of the model."""

import logging
import os

import paddle
import paddle.distributed as dist
import paddle.distributed.fleet as fleet

from .create_program import build_distill_program
from .strategy_config import Distillation, TrainConfig

_logger = logging.getLogger(__name__)


class AutoCompression:
    def __init__(self, model_dir, save_dir, config, num_classes, image_size, train_dataloader):
        self.model_dir = model_dir
        self.final_dir = save_dir
        self.num_classes = num_classes
        self.image_size = image_size
        self.train_dataloader = train_dataloader
        self.strategy_config = Distillation(**config["Distillation"])
        self.train_config = TrainConfig(**config["TrainConfig"])
        self._places = paddle.static.cuda_places() if paddle.is_compiled_with_cuda() else paddle.static.cpu_places()
        self._exe = paddle.static.Executor(self._places[0])
        self.fleet = dist.get_world_size() > 1

    def _prepare_fleet_strategy(self, train_config):
        build_strategy = paddle.static.BuildStrategy()
        strategy = fleet.DistributedStrategy()
        strategy.build_strategy = build_strategy
        if train_config.amp_config is not None:
            strategy.amp = True
            strategy.amp_configs = {**train_config.amp_config}
        return strategy

    def compress(self):
        train_config = self.train_config
        dist_strategy = None
        if self.fleet:
            fleet.init(is_collective=True)
            dist_strategy = self._prepare_fleet_strategy(train_config)
        info = build_distill_program(
            self.strategy_config, train_config.__dict__, self.num_classes, self.image_size, dist_strategy)
        self._exe.run(info.startup_program)
        if (not self.fleet) and train_config.amp_config is not None:
            if train_config.amp_config.get("use_pure_fp16"):
                info.optimizer.amp_init(self._places[0], scope=paddle.static.global_scope())
        if os.path.exists(self.model_dir):
            paddle.static.load(info.program, os.path.join(self.model_dir, "teacher"), self._exe)
        self._start_train(info, train_config)

    def _start_train(self, info, train_config):
        total = 0
        for epoch in range(train_config.epochs or 1):
            for data in self.train_dataloader():
                (loss,) = self._exe.run(info.program, feed=data, fetch_list=info.fetch_targets)
                if not isinstance(info.learning_rate, float):
                    info.learning_rate.step()
                total += 1
                if total % train_config.logging_iter == 0:
                    _logger.info("Total iter: %d, epoch: %d, loss: %s", total, epoch, loss)
                if train_config.train_iter and total >= train_config.train_iter:
                    break
        os.makedirs(self.final_dir, exist_ok=True)
        paddle.static.save(info.program, os.path.join(self.final_dir, "student"))
