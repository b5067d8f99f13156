# -*- coding: utf-8 -*
import logging
import time

import paddle
from paddle.distributed import fleet

from erniekit.common.register import RegisterSet
from erniekit.controller.dynamic_trainer import BaseDynamicTrainer


@RegisterSet.trainer.register
class CustomDynamicTrainer(BaseDynamicTrainer):
    def __init__(self, params, data_set_reader, model):
        BaseDynamicTrainer.__init__(self, params, data_set_reader, model)

    def do_train(self):
        dg = self.data_set_reader.train_reader

        steps = 1
        opt_params = self.original_model.model_params.get("optimization", None)
        init_loss_scaling = opt_params.get("init_loss_scaling", 1.0)
        incr_every_n_steps = opt_params.get("incr_every_n_steps", 1000)
        decr_every_n_nan_or_inf = opt_params.get("decr_every_n_nan_or_inf", 2)
        incr_ratio = opt_params.get("incr_ratio", 2.0)
        decr_ratio = opt_params.get("decr_ratio", 0.8)

        if self.use_amp:
            self.scaler = paddle.amp.GradScaler(
                enable=self.use_amp,
                init_loss_scaling=init_loss_scaling,
                incr_ratio=incr_ratio,
                decr_ratio=decr_ratio,
                incr_every_n_steps=incr_every_n_steps,
                decr_every_n_nan_or_inf=decr_every_n_nan_or_inf,
            )
            if self.multi_devices:
                self.scaler = fleet.distributed_scaler(self.scaler)

        time_begin = time.time()
        for batch_id, data in enumerate(dg()):
            self.model_class.train()
            with paddle.amp.auto_cast(enable=self.use_amp):
                example = dg.convert_fields_to_dict(data)
                forward_out = self.model_class(example, phase="training")
                loss = forward_out["loss"]

            if self.use_amp:
                loss = self.scaler.scale(loss)
                loss.backward()
                self.scaler.minimize(self.optimizer, loss)
            else:
                loss.backward()
                self.optimizer.minimize(loss)

            if self.original_model.lr_scheduler:
                cur_lr = self.original_model.lr_scheduler.get_lr()
                self.original_model.lr_scheduler.step()
            else:
                cur_lr = self.original_model.lr
            self.optimizer.clear_grad()

            if steps % self.params["train_log_step"] == 0:
                used_time = time.time() - time_begin
                right = self.original_model.get_metrics(forward_out)
                logging.info("step %d lr %.7f acc %.4f in %.2fs", steps, cur_lr, right, used_time)
                time_begin = time.time()
            if steps % self.params["eval_step"] == 0 and self.params["is_eval_dev"]:
                self.do_evaluate(self.data_set_reader.dev_reader, "evaluate", steps)
            if steps % self.params["save_model_step"] == 0 and self.worker_index == 0:
                self.save_models(steps)
            steps += 1

        if self.worker_index == 0:
            self.save_models(steps)

    @paddle.no_grad()
    def do_evaluate(self, reader, phase, step):
        self.model_class.eval()
        scores = []
        for data in reader():
            example = reader.convert_fields_to_dict(data)
            scores.append(self.original_model.get_metrics(self.model_class(example, phase=phase)))
        logging.info("%s step %d acc %.4f", phase, step, sum(scores) / len(scores))
        self.model_class.train()
