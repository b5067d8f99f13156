import os
from logging import getLogger

import paddle

logger = getLogger()


class Trainer(object):
    def __init__(self, modules, env, params):
        self.modules = modules
        self.env = env
        self.params = params
        self.n_steps_per_epoch = params.n_steps_per_epoch
        self.inner_epoch = 0
        self.set_parameters()

        assert params.amp >= 1 or not params.fp16

        self.optimizer = paddle.optimizer.AdamW(
            parameters=self.parameters["model"], learning_rate=params.lr, weight_decay=0.01
        )
        self.scaler = None
        if params.amp >= 0:
            self.scaler = paddle.cuda.amp.GradScaler(
                init_scale=params.loss_scale, backoff_factor=0.25, growth_interval=500
            )
        self.epoch = 1
        self.n_iter = 0
        self.n_total_iter = 0

    def set_parameters(self):
        named = []
        for module in self.modules.values():
            named.extend((k, p) for k, p in module.named_parameters() if p.requires_grad)
        self.parameters = {"model": [p for _, p in named]}

    def optimize(self, loss):
        if bool((loss != loss).any()):
            logger.warning("NaN detected")
        params = self.params
        optimizer = self.optimizer

        if params.amp == -1:
            optimizer.zero_grad()
            loss.backward()
            if params.clip_grad_norm > 0:
                paddle.nn.utils.clip_grad_norm_(self.parameters["model"], params.clip_grad_norm)
            optimizer.step()
        else:
            if params.accumulate_gradients > 1:
                loss = loss / params.accumulate_gradients
            self.scaler.scale(loss).backward()
            if (self.n_iter + 1) % params.accumulate_gradients == 0:
                if params.clip_grad_norm > 0:
                    self.scaler.unscale_(optimizer)
                    paddle.nn.utils.clip_grad_norm_(
                        parameters=self.parameters["model"], max_norm=params.clip_grad_norm
                    )
                self.scaler.step(optimizer)
                self.scaler.update()
                optimizer.zero_grad()

    def enc_dec_step(self):
        encoder, decoder = self.modules["encoder"], self.modules["decoder"]
        encoder.train()
        decoder.train()
        points, formula = self.env.batch()
        if self.params.amp == -1:
            loss = decoder(formula, encoder(points))
        else:
            with paddle.cuda.amp.autocast():
                loss = decoder(formula, encoder(points))
        self.optimize(loss)
        self.inner_epoch += 1

    def iter(self):
        self.n_iter += 1
        self.n_total_iter += 1
        if self.n_total_iter % self.params.print_freq == 0:
            logger.info("%7i - lr %.2e", self.n_total_iter, self.optimizer.get_lr())

    def end_epoch(self):
        path = os.path.join(self.params.dump_path, "checkpoint.pth")
        data = {"epoch": self.epoch, "optimizer": self.optimizer.state_dict()}
        for name, module in self.modules.items():
            data[name] = module.state_dict()
        if self.scaler is not None:
            data["scaler"] = self.scaler.state_dict()
        paddle.save(obj=data, path=path)
        self.epoch += 1
