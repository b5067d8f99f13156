"""Object detection: settings of a configuration object, with defaults; decorated before it is distributed."""

import paddle
import paddle.distributed as dist
from paddle.distributed import fleet
from ppdet.core.workspace import create
from ppdet.engine.callbacks import Callbacks


class Trainer(object):
    def __init__(self, cfg, mode="train"):
        self.cfg = cfg.copy()
        assert mode.lower() in ["train", "eval", "test"]
        self.mode = mode.lower()
        self.use_amp = self.cfg.get("amp", False)
        self.amp_level = self.cfg.get("amp_level", "O1")
        self.custom_white_list = self.cfg.get("custom_white_list", None)
        self.custom_black_list = self.cfg.get("custom_black_list", None)
        self.use_master_grad = self.cfg.get("master_grad", False)
        self.model = create(cfg.architecture)
        if self.mode == "train":
            self.loader = create("TrainReader")(self.dataset, cfg.worker_num)
            self.lr = create("LearningRate")(len(self.loader))
            self.optimizer = create("OptimizerBuilder")(self.lr, self.model)
            if self.use_amp and self.amp_level == "O2":
                paddle_version = paddle.__version__[:3]
                if paddle_version in ["2.4", "2.3"]:
                    self.model, self.optimizer = paddle.amp.decorate(
                        models=self.model, optimizers=self.optimizer, level=self.amp_level
                    )
                else:
                    self.model, self.optimizer = paddle.amp.decorate(
                        models=self.model,
                        optimizers=self.optimizer,
                        level=self.amp_level,
                        master_grad=self.use_master_grad,
                    )
        self._nranks = dist.get_world_size()
        self._local_rank = dist.get_rank()

    def train(self, validate=False):
        sync_bn = (
            getattr(self.cfg, "norm_type", None) == "sync_bn"
            and self.cfg.use_gpu
            and self._nranks > 1
        )
        model = self.model
        if sync_bn:
            model = paddle.nn.SyncBatchNorm.convert_sync_batchnorm(model)
        if self.use_amp:
            scaler = paddle.amp.GradScaler(
                enable=self.cfg.use_gpu or self.cfg.use_npu or self.cfg.use_mlu,
                init_loss_scaling=self.cfg.get("init_loss_scaling", 1024),
            )
        if self.cfg.get("fleet", False):
            model = fleet.distributed_model(model)
            self.optimizer = fleet.distributed_optimizer(self.optimizer)
        elif self._nranks > 1:
            model = paddle.DataParallel(model)
        for epoch_id in range(self.start_epoch, self.cfg.epoch):
            model.train()
            for step_id, data in enumerate(self.loader):
                if self.use_amp:
                    if isinstance(model, paddle.DataParallel):
                        with model.no_sync():
                            with paddle.amp.auto_cast(
                                enable=self.cfg.use_gpu or self.cfg.use_npu or self.cfg.use_mlu,
                                custom_white_list=self.custom_white_list,
                                custom_black_list=self.custom_black_list,
                                level=self.amp_level,
                            ):
                                outputs = model(data)
                                loss = outputs["loss"]
                            scaled_loss = scaler.scale(loss)
                            scaled_loss.backward()
                    else:
                        with paddle.amp.auto_cast(
                            enable=self.cfg.use_gpu or self.cfg.use_npu or self.cfg.use_mlu,
                            custom_white_list=self.custom_white_list,
                            custom_black_list=self.custom_black_list,
                            level=self.amp_level,
                        ):
                            outputs = model(data)
                            loss = outputs["loss"]
                        scaled_loss = scaler.scale(loss)
                        scaled_loss.backward()
                    scaler.minimize(self.optimizer, scaled_loss)
                else:
                    outputs = model(data)
                    loss = outputs["loss"]
                    loss.backward()
                    self.optimizer.step()
                self.lr.step()
                self.optimizer.clear_grad()

    def _eval_with_loader(self, loader):
        self.model.eval()
        for step_id, data in enumerate(loader):
            if self.use_amp:
                with paddle.amp.auto_cast(
                    enable=self.cfg.use_gpu or self.cfg.use_npu or self.cfg.use_mlu,
                    custom_white_list=self.custom_white_list,
                    custom_black_list=self.custom_black_list,
                    level=self.amp_level,
                ):
                    outs = self.model(data)
            else:
                outs = self.model(data)
