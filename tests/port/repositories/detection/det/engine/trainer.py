import paddle

from det.core.workspace import create

__all__ = ["Trainer"]


class Trainer(object):
    def __init__(self, cfg, mode="train"):
        self.cfg = cfg.copy()
        assert mode.lower() in ["train", "eval", "test"]
        self.mode = mode.lower()
        self.optimizer = None
        self.use_amp = self.cfg.get("amp", False)
        self.amp_level = self.cfg.get("amp_level", "O1")
        self.custom_white_list = self.cfg.get("custom_white_list", None)
        self.custom_black_list = self.cfg.get("custom_black_list", None)
        self.use_master_grad = self.cfg.get("master_grad", False)
        self.loader = create("{}Reader".format(self.mode.capitalize()))()
        self.model = create(cfg.architecture)
        if self.mode == "train":
            self.optimizer = create("OptimizerBuilder")(self.model)
        if self.use_amp and self.amp_level == "O2":
            self.model, self.optimizer = paddle.amp.decorate(
                models=self.model,
                optimizers=self.optimizer,
                level=self.amp_level,
                master_grad=self.use_master_grad,
            )

    def train(self, validate=False):
        assert self.mode == "train", "Model not in 'train' mode"
        model = self.model
        if self.use_amp:
            scaler = paddle.amp.GradScaler(
                enable=self.cfg.use_gpu,
                init_loss_scaling=self.cfg.get("init_loss_scaling", 1024),
            )
        for epoch_id in range(self.cfg.epoch):
            model.train()
            for step_id, data in enumerate(self.loader):
                if self.use_amp:
                    with paddle.amp.auto_cast(
                        enable=self.cfg.use_gpu,
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
                self.optimizer.clear_grad()
            if validate:
                self.evaluate()

    def evaluate(self):
        with paddle.no_grad():
            for data in self.loader:
                if self.use_amp:
                    with paddle.amp.auto_cast(
                        enable=self.cfg.use_gpu,
                        custom_white_list=self.custom_white_list,
                        custom_black_list=self.custom_black_list,
                        level=self.amp_level,
                    ):
                        self.model(data)
                else:
                    self.model(data)
