"""3D perception: a dictionary `amp_cfg` from a YAML file is taken apart."""

import paddle
from paddle3d.utils import env
from paddle3d.utils.logger import logger


class Trainer:
    def __init__(
        self, model, optimizer, iters=None, train_dataset=None, amp_cfg=None, checkpoint=dict()
    ):
        self.model = model
        self.optimizer = optimizer
        self.nranks = env.nranks
        self.local_rank = env.local_rank
        self.scaler = None
        self.amp_cfg = None
        if amp_cfg is not None and amp_cfg.get("use_amp", False):
            scaler_cfg = dict(init_loss_scaling=2.0**15)
            scaler_cfg.update(**amp_cfg.pop("scaler", dict()))
            self.scaler = paddle.amp.GradScaler(**scaler_cfg)
            amp_cfg.pop("use_amp", False)
            self.amp_cfg = amp_cfg
            level = amp_cfg.get("level", "O1")
            if level == "O2":
                self.model, self.optimizer = paddle.amp.decorate(
                    models=self.model, optimizers=self.optimizer, level="O2"
                )
            logger.info("Use AMP train, AMP config: {}".format(amp_cfg))

    def train(self):
        model = self.model
        if self.nranks > 1:
            model = paddle.DataParallel(self.model)
        for sample in self.train_dataloader:
            if self.scaler is not None:
                with paddle.amp.auto_cast(enable=True, level=self.amp_cfg.get("level", "O1")):
                    loss = model(sample)["loss"]
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                loss = model(sample)["loss"]
                loss.backward()
                self.optimizer.step()
            self.optimizer.clear_grad()
