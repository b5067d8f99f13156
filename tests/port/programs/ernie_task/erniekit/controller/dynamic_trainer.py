# -*- coding: utf-8 -*
"""What trainers of dynamic graphs share."""
import logging
import os

import paddle
import paddle.distributed as dist
from paddle.distributed import fleet


class BaseDynamicTrainer(object):
    def __init__(self, params, data_set_reader, model_class):
        self.data_set_reader = data_set_reader
        self.params = params
        self.model_class = model_class
        self.multi_devices = False
        self.use_fleet = False

        if self.params.get("PADDLE_IS_FLEET", 0):
            fleet.init(is_collective=True)
            logging.info("fleet init ...")
            self.use_fleet = True
            self.worker_index = paddle.distributed.get_rank()
        else:
            self.use_fleet = False
            self.worker_index = 0

        self.model_class.structure()
        if self.worker_index == 0:
            self.load_pretrain_model()

        if self.use_fleet:
            self.model_class = fleet.distributed_model(self.model_class)
            if dist.get_world_size() > 1:
                self.multi_devices = True
                self.original_model = self.model_class._layers
            else:
                self.original_model = self.model_class
        else:
            self.original_model = self.model_class

        self.use_amp = self.params.get("use_amp", False)
        output_path = self.params.get("output_path", "./output")
        self.save_checkpoints_path = os.path.join(output_path, "save_checkpoints")

        if self.multi_devices:
            self.optimizer = self.model_class._layers.set_optimizer()
            self.optimizer = fleet.distributed_optimizer(self.optimizer)
        else:
            self.optimizer = self.model_class.set_optimizer()

    def do_train(self):
        raise NotImplementedError

    def do_evaluate(self, reader, phase, step):
        raise NotImplementedError

    def save_models(self, step):
        folder = os.path.join(self.save_checkpoints_path, "checkpoints_step_%d" % step)
        os.makedirs(folder, exist_ok=True)
        prefix = os.path.join(folder, "wenxin")
        paddle.save(self.original_model.state_dict(), "{0}.pdparams".format(prefix))
        paddle.save(self.optimizer.state_dict(), "{0}.pdopt".format(prefix))

    def load_pretrain_model(self):
        path = self.params["load_checkpoint"] or self.params["load_parameters"]
        if not path:
            return
        logging.info("load %s", path)
        self.model_class.set_state_dict(paddle.load(os.path.join(path, "wenxin.pdparams")))
