"""The loop that every task of LUKE trains with."""

import logging
import time

import paddle
from paddle.optimizer import AdamW
from paddlenlp.transformers import LinearDecayWithWarmup

logger = logging.getLogger(__name__)


class Trainer(object):
    def __init__(self, args, model, dataloader, num_train_steps, step_callback=None):
        self.args = args
        self.model = model
        self.dataloader = dataloader
        self.num_train_steps = num_train_steps
        self.step_callback = step_callback
        self.scheduler = LinearDecayWithWarmup(
            args.learning_rate, num_train_steps, args.warmup_proportion
        )
        self.optimizer = self._create_optimizer()
        self.scaler = paddle.amp.GradScaler(init_loss_scaling=1024)

    def _create_optimizer(self):
        decayed = [
            p.name
            for n, p in self.model.named_parameters()
            if not any(nd in n for nd in ("bias", "norm"))
        ]
        clip = paddle.nn.ClipGradByNorm(clip_norm=self.args.max_grad_norm)
        return AdamW(
            learning_rate=self.scheduler,
            parameters=self.model.parameters(),
            weight_decay=self.args.weight_decay,
            apply_decay_param_fun=lambda name: name in decayed,
            grad_clip=clip,
        )

    def train(self):
        self.model.train()
        global_step = 0
        tr_loss = 0.0
        start = time.time()
        while global_step < self.num_train_steps:
            for step, (inputs, labels) in enumerate(self.dataloader):
                with paddle.amp.auto_cast(enable=self.args.fp16):
                    loss = self.model(inputs, labels)
                if self.args.gradient_accumulation_steps > 1:
                    loss = loss / self.args.gradient_accumulation_steps
                scaled = self.scaler.scale(loss)
                scaled.backward()
                tr_loss += float(loss)
                if (step + 1) % self.args.gradient_accumulation_steps == 0:
                    self.scaler.minimize(self.optimizer, scaled)
                    self.scheduler.step()
                    self.optimizer.clear_grad()
                    global_step += 1
                    if global_step % 50 == 0:
                        speed = 50 / (time.time() - start)
                        logger.info("step %d loss %f, %f steps/s", global_step, tr_loss, speed)
                        tr_loss, start = 0.0, time.time()
                    if global_step == self.num_train_steps:
                        break
            if self.step_callback is not None:
                logger.info("after %d steps: %s", global_step, self.step_callback())
        return global_step
