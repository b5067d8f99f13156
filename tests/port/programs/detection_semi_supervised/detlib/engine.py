"""Trainers: supervised, and with a mean teacher on unlabelled images."""

import copy
import logging

import paddle
import paddle.distributed as dist

from .workspace import create

logger = logging.getLogger(__name__)


class Trainer:
    def __init__(self, cfg, mode="train"):
        self.cfg = cfg
        assert mode.lower() in ["train", "eval", "test"]
        self.mode = mode.lower()
        self.use_amp = self.cfg.get("amp", False)
        self.amp_level = self.cfg.get("amp_level", "O1")
        self.custom_white_list = self.cfg.get("custom_white_list", None)
        self.custom_black_list = self.cfg.get("custom_black_list", None)

        self.model = create(cfg.architecture)
        if self.mode == "train":
            self.loader = create("SemiTrainReader")
            self.lr = create("LearningRate")(len(self.loader))
            self.optimizer = create("OptimizerBuilder")(self.lr, self.model)
        if self.use_amp and self.amp_level == "O2":
            self.model, self.optimizer = paddle.amp.decorate(
                models=self.model,
                optimizers=self.optimizer,
                level=self.amp_level,
                master_weight=self.cfg.get("master_weight", None))
        self._nranks = dist.get_world_size()
        self.start_epoch = 0

    def resume_weights(self, weights):
        self.model.set_state_dict(paddle.load(weights + ".pdparams"))
        self.optimizer.set_state_dict(paddle.load(weights + ".pdopt"))

    def amp_guard(self):
        return paddle.amp.auto_cast(
            enable=self.use_amp,
            custom_white_list=self.custom_white_list,
            custom_black_list=self.custom_black_list,
            level=self.amp_level)

    def make_scaler(self):
        return paddle.amp.GradScaler(
            enable=self.cfg.use_gpu,
            init_loss_scaling=self.cfg.get("init_loss_scaling", 1024))

    def train(self, validate=False):
        if self.use_amp:
            scaler = self.make_scaler()
        for epoch_id in range(self.start_epoch, self.cfg.epoch):
            for step_id, (data, _, _) in enumerate(self.loader):
                if self.use_amp:
                    with self.amp_guard():
                        outputs = self.model(data)
                        loss = outputs["loss"]
                    scaled_loss = scaler.scale(loss)
                    scaled_loss.backward()
                    scaler.minimize(self.optimizer, scaled_loss)
                else:
                    outputs = self.model(data)
                    loss = outputs["loss"]
                    loss.backward()
                    self.optimizer.step()
                self.lr.step()
                self.optimizer.clear_grad()


class SemiTrainer(Trainer):
    def __init__(self, cfg, mode="train"):
        super().__init__(cfg, mode)
        self.teacher = copy.deepcopy(self.model)
        for param in self.teacher.parameters():
            param.stop_gradient = True
        self.ema_decay = self.cfg.get("ema_decay", 0.9996)

    @paddle.no_grad()
    def update_teacher(self):
        for mean, param in zip(self.teacher.parameters(), self.model.parameters()):
            mean.set_value(self.ema_decay * mean + (1 - self.ema_decay) * param.astype(mean.dtype))

    def train(self, validate=False):
        train_cfg = self.cfg.MeanTeacher["train_cfg"]
        semi_start_iters = self.cfg.get("semi_start_iters", 5000)
        scaler = self.make_scaler() if self.use_amp else None
        for epoch_id in range(self.start_epoch, self.cfg.epoch):
            self.model.train()
            for step_id, (data_sup, weak, strong) in enumerate(self.loader):
                curr_iter = len(self.loader) * epoch_id + step_id
                with self.amp_guard():
                    losses = self.model(data_sup)["loss"] * train_cfg["sup_weight"]
                    if curr_iter > semi_start_iters:
                        student = self.model.predict(strong["image"])
                        with paddle.no_grad():
                            teacher = self.teacher.predict(weak["image"])
                        unsup = self.model.get_ssod_loss(student, teacher, train_cfg["threshold"])
                        losses = losses + train_cfg["unsup_weight"] * sum(unsup.values())

                if scaler is not None:
                    scaler.scale(losses).backward()
                    scaler.step(self.optimizer)
                    scaler.update()
                else:
                    losses.backward()
                    self.optimizer.step()
                self.lr.step()
                self.optimizer.clear_grad()
                self.update_teacher()
                if step_id % self.cfg.log_iter == 0:
                    logger.info("epoch %d step %d loss %.4f", epoch_id, step_id, float(losses))
