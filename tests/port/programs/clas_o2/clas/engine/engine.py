import os
import platform
import random

import numpy as np
import paddle
import paddle.distributed as dist
from visualdl import LogWriter

from clas.arch import build_model
from clas.data import build_dataloader
from clas.engine.evaluation import classification_eval
from clas.engine.train import train_epoch
from clas.loss import build_loss
from clas.optimizer import build_optimizer
from clas.utils import logger, save_load
from clas.utils.config import print_config
from clas.utils.misc import AverageMeter


class Engine(object):
    def __init__(self, config, mode="train"):
        assert mode in ["train", "eval", "infer", "export"]
        self.mode = mode
        self.config = config

        # set seed
        seed = self.config["Global"].get("seed", False)
        if seed or seed == 0:
            assert isinstance(seed, int), "The 'seed' must be a integer!"
            paddle.seed(seed)
            np.random.seed(seed)
            random.seed(seed)

        # init logger
        self.output_dir = self.config["Global"]["output_dir"]
        log_file = os.path.join(self.output_dir, self.config["Arch"]["name"], f"{mode}.log")
        logger.init_logger(log_file=log_file)
        print_config(config)

        # init train_func and eval_func
        self.train_epoch_func = train_epoch
        self.eval_func = classification_eval

        # for visualdl
        self.vdl_writer = None
        if self.config["Global"]["use_visualdl"] and mode == "train" and dist.get_rank() == 0:
            self.vdl_writer = LogWriter(logdir=os.path.join(self.output_dir, "vdl"))

        # set device
        assert self.config["Global"]["device"] in ["cpu", "gpu", "xpu", "npu", "mlu"]
        self.device = paddle.set_device(self.config["Global"]["device"])
        logger.info("train with paddle {} and device {}".format(paddle.__version__, self.device))

        # AMP training and evaluating
        self.amp = "AMP" in self.config and self.config["AMP"] is not None
        self.amp_eval = False
        if self.amp:
            AMP_RELATED_FLAGS_SETTING = {}
            if paddle.is_compiled_with_cuda():
                AMP_RELATED_FLAGS_SETTING.update({"FLAGS_cudnn_batchnorm_spatial_persistent": 1})
            paddle.set_flags(AMP_RELATED_FLAGS_SETTING)

            self.scale_loss = self.config["AMP"].get("scale_loss", 1.0)
            self.use_dynamic_loss_scaling = self.config["AMP"].get(
                "use_dynamic_loss_scaling", False
            )
            self.amp_level = self.config["AMP"].get("level", "O1")
            if self.amp_level not in ["O1", "O2"]:
                logger.warning("The level of AMP only supports 'O1' and 'O2', it has been set 'O1'.")
                self.config["AMP"]["level"] = "O1"
                self.amp_level = "O1"
            self.use_promote = self.config["AMP"].get("use_promote", False)
            self.amp_eval = self.config["AMP"].get("use_fp16_test", False)
            if self.amp_level == "O2":
                self.amp_eval = True

        class_num = config["Arch"].get("class_num", None)
        self.config["DataLoader"].update({"class_num": class_num})
        # build dataloader
        if self.mode == "train":
            self.train_dataloader = build_dataloader(self.config["DataLoader"], "Train", self.device)
        if self.mode == "eval" or self.config["Global"]["eval_during_train"]:
            self.eval_dataloader = build_dataloader(self.config["DataLoader"], "Eval", self.device)

        # build loss
        if self.mode == "train":
            self.train_loss_func = build_loss(self.config["Loss"]["Train"])
        self.eval_loss_func = build_loss(self.config["Loss"]["Eval"])

        # build model
        self.model = build_model(self.config["Arch"])
        if self.config["Global"]["pretrained_model"] is not None:
            save_load.load_dygraph_pretrain(self.model, self.config["Global"]["pretrained_model"])

        # build optimizer
        if self.mode == "train":
            self.optimizer, self.lr_sch = build_optimizer(
                self.config["Optimizer"],
                self.config["Global"]["epochs"],
                len(self.train_dataloader),
                [self.model, self.train_loss_func],
            )

        # AMP training and evaluating
        self._init_amp()

        # for distributed
        self.config["Global"]["distributed"] = dist.get_world_size() != 1
        if self.config["Global"]["distributed"]:
            dist.init_parallel_env()
            self.model = paddle.DataParallel(self.model)

    def train(self):
        assert self.mode == "train"
        print_batch_step = self.config["Global"]["print_batch_step"]
        save_interval = self.config["Global"]["save_interval"]
        best_metric = {"metric": -1.0, "epoch": 0}
        # key: name of a loss or a metric, val: its average
        self.output_info = dict()
        self.time_info = {
            "batch_cost": AverageMeter("batch_cost", ".5f", postfix=" s,"),
            "reader_cost": AverageMeter("reader_cost", ".5f", postfix=" s,"),
        }
        # global iter counter
        self.global_step = 0

        if self.config["Global"]["checkpoints"] is not None:
            metric_info = save_load.init_model(
                self.config["Global"], self.model, self.optimizer, self.train_loss_func
            )
            if metric_info is not None:
                best_metric.update(metric_info)

        self.max_iter = (
            len(self.train_dataloader) - 1
            if platform.system() == "Windows"
            else len(self.train_dataloader)
        )
        for epoch_id in range(best_metric["epoch"] + 1, self.config["Global"]["epochs"] + 1):
            acc = 0.0
            # for one epoch train
            self.train_epoch_func(self, epoch_id, print_batch_step)
            metric_msg = ", ".join(self.output_info[key].avg_info for key in self.output_info)
            logger.info(
                "[Train][Epoch {}/{}][Avg]{}".format(
                    epoch_id, self.config["Global"]["epochs"], metric_msg
                )
            )
            self.output_info.clear()

            # eval model and save model if possible
            start_eval_epoch = self.config["Global"].get("start_eval_epoch", 0) - 1
            if (
                self.config["Global"]["eval_during_train"]
                and epoch_id % self.config["Global"]["eval_interval"] == 0
                and epoch_id > start_eval_epoch
            ):
                acc = self.eval(epoch_id)
                if acc >= best_metric["metric"]:
                    best_metric["metric"] = acc
                    best_metric["epoch"] = epoch_id
                    save_load.save_model(self.model, self.optimizer, self.output_dir, "best_model")
                logger.info("[Eval][Epoch {}][best: {}]".format(epoch_id, best_metric["metric"]))
                self.model.train()

            # save model
            if save_interval > 0 and epoch_id % save_interval == 0:
                save_load.save_model(
                    self.model, self.optimizer, self.output_dir, "epoch_{}".format(epoch_id)
                )
        if self.vdl_writer is not None:
            self.vdl_writer.close()

    @paddle.no_grad()
    def eval(self, epoch_id=0):
        assert self.mode in ["train", "eval"]
        self.model.eval()
        eval_result = self.eval_func(self, epoch_id)
        self.model.train()
        return eval_result

    def _init_amp(self):
        """The scaler, and models in low precision at O2."""
        if not self.amp or self.mode == "export":
            return
        self.scaler = paddle.amp.GradScaler(
            init_loss_scaling=self.scale_loss,
            use_dynamic_loss_scaling=self.use_dynamic_loss_scaling,
        )
        if self.mode == "train":
            self.model, self.optimizer = paddle.amp.decorate(
                models=self.model,
                optimizers=self.optimizer,
                level=self.amp_level,
                save_dtype="float32",
            )
        elif self.amp_eval:
            self.model = paddle.amp.decorate(
                models=self.model, level=self.amp_level, save_dtype="float32"
            )
        if self.mode == "train" and len(self.train_loss_func.parameters()) > 0:
            self.train_loss_func = paddle.amp.decorate(
                models=self.train_loss_func, level=self.amp_level, save_dtype="float32"
            )
