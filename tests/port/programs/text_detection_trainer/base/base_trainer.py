"""What every trainer does around its epochs; detection and recognition each have a class of their own."""

import os
import pathlib
import shutil

import paddle
import paddle.distributed as dist

from utils.util import WarmupPolyLR, save, setup_logger


class BaseTrainer:
    def __init__(self, config, model, criterion, train_loader, validate_loader, metric_cls):
        config["trainer"]["output_dir"] = os.path.join(
            str(pathlib.Path(os.path.abspath(__name__)).parent), config["trainer"]["output_dir"]
        )
        config["name"] = config["name"] + "_" + model.name
        self.save_dir = os.path.join(config["trainer"]["output_dir"], config["name"])
        self.checkpoint_dir = os.path.join(self.save_dir, "checkpoint")
        if config["trainer"]["resume_checkpoint"] == "" and config["trainer"]["finetune"] == "":
            shutil.rmtree(self.save_dir, ignore_errors=True)
        os.makedirs(self.checkpoint_dir, exist_ok=True)

        self.global_step = 0
        self.start_epoch = 0
        self.config = config
        self.criterion = criterion
        self.train_loader = train_loader
        self.validate_loader = validate_loader
        self.metric_cls = metric_cls
        self.model = model

        # logger and visualdl
        self.visualdl_enable = config["trainer"]["visual_dl"]
        self.epochs = config["trainer"]["epochs"]
        self.log_iter = config["trainer"]["log_iter"]
        save(os.path.join(self.save_dir, "config.yaml"), self.config)
        self.logger = setup_logger(os.path.join(self.save_dir, "train.log"))

        # device
        if paddle.device.cuda.device_count() > 0 and paddle.is_compiled_with_cuda():
            self.with_cuda = True
            paddle.seed(self.config["trainer"]["seed"])
            self.logger.info("train with gpu and paddle {}".format(paddle.__version__))
        else:
            self.with_cuda = False
            self.logger.info("train with cpu and paddle {}".format(paddle.__version__))

        # metrics, learning rate, optimizer
        self.metrics = {"recall": 0, "precision": 0, "hmean": 0, "train_loss": float("inf")}
        self.scheduler = self._initialize_scheduler()
        self.optimizer = self._initialize_optimizer()
        self.amp = self.config.get("amp", {"enable": True})
        if self.amp["enable"]:
            self._initialize_amp()
        if self.config["trainer"]["resume_checkpoint"] != "":
            self._load_checkpoint(self.config["trainer"]["resume_checkpoint"], resume=True)
        elif self.config["trainer"]["finetune"] != "":
            self._load_checkpoint(self.config["trainer"]["finetune"], resume=False)
        if self.config["distributed"]:
            dist.init_parallel_env()
            self.model = paddle.DataParallel(self.model)

    def train(self):
        """All epochs of a training."""
        for epoch in range(self.start_epoch + 1, self.epochs + 1):
            self.epoch_result = self._train_epoch(epoch)
            self.scheduler.step()
            self._on_epoch_finish()
        self._on_train_finish()

    def _train_epoch(self, epoch):
        raise NotImplementedError

    def _eval(self, epoch):
        raise NotImplementedError

    def _on_epoch_finish(self):
        raise NotImplementedError

    def _on_train_finish(self):
        raise NotImplementedError

    def _initialize_amp(self):
        """The scaler, and the model as the regions of the subclasses want it."""
        self.scaler = paddle.amp.GradScaler(init_loss_scaling=self.amp.get("scale_loss", 1024))
        self.model, self.optimizer = paddle.amp.decorate(self.model, self.optimizer, level="O2")
        self.logger.info("train with mixed precision, O2")

    def _step(self, loss):
        """One step by the loss of a batch, whichever trainer made it."""
        if self.amp["enable"]:
            scaled = self.scaler.scale(loss)
            scaled.backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            self.optimizer.step()
        self.optimizer.clear_grad()
        self.global_step += 1

    def _save_checkpoint(self, epoch, file_name):
        state_dict = {
            "epoch": epoch,
            "global_step": self.global_step,
            "state_dict": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "config": self.config,
            "metrics": self.metrics,
        }
        paddle.save(state_dict, os.path.join(self.checkpoint_dir, file_name))

    def _load_checkpoint(self, checkpoint_path, resume):
        self.logger.info("Loading checkpoint: {} ...".format(checkpoint_path))
        checkpoint = paddle.load(checkpoint_path)
        self.model.set_state_dict(checkpoint["state_dict"])
        if resume:
            self.global_step = checkpoint["global_step"]
            self.start_epoch = checkpoint["epoch"]
            self.optimizer.set_state_dict(checkpoint["optimizer"])
            self.metrics = checkpoint.get("metrics", self.metrics)

    def _initialize_scheduler(self):
        args = self.config["lr_scheduler"]["args"]
        return WarmupPolyLR(
            args["learning_rate"], self.epochs, warmup_epoch=args.get("warmup_epoch", 3)
        )

    def _initialize_optimizer(self):
        return paddle.optimizer.Adam(
            learning_rate=self.scheduler,
            parameters=self.model.parameters(),
            weight_decay=paddle.regularizer.L2Decay(self.config["optimizer"].get("decay", 0.0)),
        )

    def inverse_normalize(self, batch_img):
        mean = paddle.to_tensor(self.normalize_mean).reshape([1, 3, 1, 1])
        std = paddle.to_tensor(self.normalize_std).reshape([1, 3, 1, 1])
        return batch_img * std + mean
