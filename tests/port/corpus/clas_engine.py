"""An image classification engine, built from a YAML configuration: AMP if the configuration has a section for it."""

import paddle
import paddle.distributed as dist
from ppcls.arch import build_model
from ppcls.data import build_dataloader
from ppcls.optimizer import build_optimizer
from ppcls.utils import logger


class Engine:
    def __init__(self, config, mode="train"):
        self.mode = mode
        self.config = config
        self.eval_mode = self.config["Global"].get("eval_mode", "classification")
        self.device = paddle.set_device(self.config["Global"]["device"])
        self.model = build_model(self.config, self.mode)
        if self.mode == "train":
            self.train_dataloader = build_dataloader(
                self.config["DataLoader"], "Train", self.device
            )
            self.optimizer, self.lr_sch = build_optimizer(
                self.config["Optimizer"],
                self.config["Global"]["epochs"],
                len(self.train_dataloader),
                [self.model],
            )
        self._init_amp()
        if dist.get_world_size() > 1:
            dist.init_parallel_env()
            self.model = paddle.DataParallel(self.model)

    def _init_amp(self):
        self.amp = "AMP" in self.config and self.config["AMP"] is not None
        self.amp_eval = False
        if not self.amp:
            self.scaler = None
            return
        self.scale_loss = self.config["AMP"].get("scale_loss", 1.0)
        self.use_dynamic_loss_scaling = self.config["AMP"].get("use_dynamic_loss_scaling", False)
        self.amp_level = self.config["AMP"].get("level", "O1").upper()
        if self.amp_level not in ["O1", "O2"]:
            logger.warning("The level is O1 or O2; it is set to O1 now.")
            self.amp_level = "O1"
        self.amp_eval = self.config["AMP"].get("use_fp16_test", False)
        if self.mode == "train":
            self.scaler = paddle.amp.GradScaler(
                init_loss_scaling=self.scale_loss,
                use_dynamic_loss_scaling=self.use_dynamic_loss_scaling,
            )
            if self.amp_level == "O2":
                self.model, self.optimizer = paddle.amp.decorate(
                    models=self.model,
                    optimizers=self.optimizer,
                    level=self.amp_level,
                    master_weight=self.config["AMP"].get("master_weight", True),
                    save_dtype=self.config["AMP"].get("save_dtype", "float32"),
                )

    def auto_cast(self, is_eval):
        return paddle.amp.auto_cast(
            enable=self.amp and (not is_eval or self.amp_eval),
            custom_black_list={"flatten_contiguous_range", "greater_than"},
            level=self.amp_level if self.amp else "O1",
        )

    def train(self):
        for epoch in range(self.config["Global"]["epochs"]):
            self.model.train()
            for iter_id, batch in enumerate(self.train_dataloader):
                with self.auto_cast(is_eval=False):
                    out = self.model(batch[0])
                    loss = self.train_loss_func(out, batch[1])["loss"]
                if self.scaler:
                    scaled = self.scaler.scale(loss)
                    scaled.backward()
                    self.scaler.minimize(self.optimizer, scaled)
                else:
                    loss.backward()
                    self.optimizer.step()
                self.optimizer.clear_grad()
            if dist.get_rank() == 0:
                self.eval(epoch)

    @paddle.no_grad()
    def eval(self, epoch):
        self.model.eval()
        for batch in self.eval_dataloader:
            with self.auto_cast(is_eval=True):
                out = self.model(batch[0])
            self.metric.update(out, batch[1])
