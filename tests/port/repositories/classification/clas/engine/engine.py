import paddle

from clas.data import build_dataloader
from clas.engine import evaluation
from clas.engine import train as train_method
from clas.engine import train_epoch
from clas.loss import build_loss
from clas.optimizer import build_optimizer
from clas.arch import build_model
from clas.utils.amp import AutoCast, build_scaler


class Engine(object):
    def __init__(self, config, mode="train"):
        assert mode in ["train", "eval", "infer", "export"]
        self.mode = mode
        self.config = config
        self.is_rec = self.config["Arch"].get("is_rec", False)
        self.train_mode = self.config["Global"].get("train_mode", None)
        if self.train_mode is None:
            self.train_epoch_func = train_epoch
        else:
            self.train_epoch_func = getattr(train_method, "train_epoch_" + self.train_mode)
        self.eval_func = getattr(evaluation, "classification" + "_eval")
        self.update_freq = self.config["Global"].get("update_freq", 1)
        self.model = build_model(self.config, self.mode)
        self.train_loss_func = build_loss(self.config["Loss"]["Train"])
        if self.mode == "train":
            self.train_dataloader = build_dataloader(self.config["DataLoader"], "Train")
            self.optimizer, self.lr_sch = build_optimizer(
                self.config["Optimizer"], [self.model, self.train_loss_func]
            )
        self.eval_dataloader = build_dataloader(self.config["DataLoader"], "Eval")
        self._init_amp()

    def train(self):
        assert self.mode == "train"
        for epoch_id in range(1, self.config["Global"]["epochs"] + 1):
            self.train_epoch_func(self, epoch_id, self.config["Global"]["print_batch_step"])
            if self.config["Global"]["eval_during_train"]:
                self.eval(epoch_id)

    @paddle.no_grad()
    def eval(self, epoch_id=0):
        self.model.eval()
        result = self.eval_func(self, epoch_id)
        self.model.train()
        return result

    def _init_amp(self):
        if self.mode == "export":
            return
        amp_config = self.config.get("AMP", None)
        use_amp = True if amp_config and amp_config.get("use_amp", True) else False
        if not use_amp:
            self.auto_cast = AutoCast(use_amp)
            self.scaler = build_scaler(use_amp)
        else:
            amp_level = amp_config.get("level", "O1")
            if amp_level not in ["O1", "O2"]:
                amp_level = amp_config["level"] = "O1"
            amp_eval = self.config["AMP"].get("use_fp16_test", False)
            self.auto_cast = AutoCast(use_amp, amp_level=amp_level, amp_eval=amp_eval)
            scale_loss = amp_config.get("scale_loss", 1.0)
            use_dynamic_loss_scaling = amp_config.get("use_dynamic_loss_scaling", False)
            self.scaler = build_scaler(
                use_amp,
                scale_loss=scale_loss,
                use_dynamic_loss_scaling=use_dynamic_loss_scaling,
            )
            if self.mode == "train":
                self.model, self.optimizer = paddle.amp.decorate(
                    models=self.model,
                    optimizers=self.optimizer,
                    level=amp_level,
                    save_dtype="float32",
                )
