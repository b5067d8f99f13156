"""The trainer: builds a model and its optimizers, and iterates."""

import logging
import os

import paddle

from .models import build_model


def build_dataloader(cfg):
    """Random crops; replace with the images of cfg.gt_folder and cfg.lq_folder."""
    size = cfg.get("gt_patch_size", 128)
    for _ in range(cfg.get("num_batches", 1000)):
        yield {"lq": paddle.rand([cfg.batch_size, 3, size // cfg.scale, size // cfg.scale]),
               "gt": paddle.rand([cfg.batch_size, 3, size, size])}


class Trainer:
    def __init__(self, cfg):
        self.logger = logging.getLogger(__name__)
        self.cfg = cfg
        self.output_dir = cfg.output_dir
        self.world_size = paddle.distributed.ParallelEnv().nranks
        self.log_interval = cfg.log_config.interval
        self.weight_interval = cfg.snapshot_config.interval
        self.current_iter = 1

        # build model
        self.model = build_model(cfg.model)
        # build lr scheduler
        self.lr_schedulers = self.model.setup_lr_schedulers(cfg.lr_scheduler)
        # build optimizers
        self.optimizers = self.model.setup_optimizers(self.lr_schedulers, cfg.optimizer)
        # setup amp train
        self.scalers = self.setup_amp_train() if self.cfg.amp else None
        # multiple gpus prepare
        if self.world_size > 1:
            paddle.distributed.init_parallel_env()
            for net_name, net in self.model.nets.items():
                self.model.nets[net_name] = paddle.DataParallel(net)
        self.total_iters = cfg.total_iters

    def setup_amp_train(self):
        """ decorate model, optimizer and return a list of GradScaler """
        self.logger.info("use AMP to train. AMP level = {}".format(self.cfg.amp_level))

        # need to decorate model and optim if amp_level == 'O2'
        if self.cfg.amp_level == "O2":
            nets, optimizers = list(self.model.nets.values()), list(self.optimizers.values())
            nets, optimizers = paddle.amp.decorate(models=nets,
                                                   optimizers=optimizers,
                                                   level="O2",
                                                   save_dtype="float32")
            for i, (k, _) in enumerate(self.model.nets.items()):
                self.model.nets[k] = nets[i]
            for i, (k, _) in enumerate(self.optimizers.items()):
                self.optimizers[k] = optimizers[i]

        scalers = [
            paddle.amp.GradScaler(init_loss_scaling=1024)
            for i in range(len(self.optimizers))
        ]
        return scalers

    def train(self):
        while self.current_iter < (self.total_iters + 1):
            for data in build_dataloader(self.cfg.dataset.train):
                # data input should be dict
                self.model.setup_input(data)
                if self.cfg.amp:
                    self.model.train_iter_amp(self.optimizers, self.scalers, self.cfg.amp_level)  # amp train
                else:
                    self.model.train_iter(self.optimizers)  # norm train

                if self.current_iter % self.log_interval == 0:
                    message = ", ".join(f"{k}: {float(v):.4f}" for k, v in self.model.losses.items())
                    self.logger.info("iter %d, %s", self.current_iter, message)
                self.lr_schedulers.step()
                if self.current_iter % self.weight_interval == 0:
                    self.save(self.current_iter)
                self.current_iter += 1

    def test(self):
        for data in build_dataloader(self.cfg.dataset.test):
            self.model.setup_input(data)
            self.model.test_iter()

    def save(self, iteration):
        state = {name: net.state_dict() for name, net in self.model.nets.items()}
        os.makedirs(self.output_dir, exist_ok=True)
        paddle.save(state, os.path.join(self.output_dir, f"iter_{iteration}_weight.pdparams"))

    def resume(self, path):
        for name, values in paddle.load(path).items():
            self.model.nets[name].set_state_dict(values)
