"""Loops over epochs; each knows how to train by one batch."""

import collections
import logging

import paddle

logger = logging.getLogger(__name__)


class EpochLoop:
    def __init__(self, trainer, epochs):
        self.trainer = trainer
        self.epochs = epochs
        self.global_step = 0

    def batches(self):
        sampler = self.trainer.config["DataLoader"]["Train"]["sampler"]
        size = sampler["batch_size"]
        for _ in range(sampler.get("batches", 1000)):
            yield [paddle.rand([size, 3, 224, 224]), paddle.rand([size, 3, 224, 224])]

    def train_one_step(self, batch):
        raise NotImplementedError

    def run(self):
        for epoch in range(self.epochs):
            self.trainer.model.train()
            for batch in self.batches():
                loss_dict = self.train_one_step(batch)
                self.global_step += 1
                if self.global_step % 10 == 0:
                    logger.info("epoch %d step %d loss %.5f", epoch, self.global_step, float(loss_dict["loss"]))
            self.trainer.lr_scheduler.step()


class ContrastiveLearningLoop(EpochLoop):
    def forward_backward(self, batch):
        # Gradient merge: the batch is split, to save memory.
        self.batch_size = batch[0].shape[0]
        assert self.batch_size % self.trainer.accum_steps == 0, f"Bad accum_steps {self.trainer.accum_steps}"
        step_size = self.batch_size // self.trainer.accum_steps
        final_loss_dict = collections.defaultdict(float)

        for idx in range(self.trainer.accum_steps):
            sub_batch = [b[idx * step_size:(idx + 1) * step_size] for b in batch]

            # do cast if using fp16 otherwise do nothing
            with paddle.amp.auto_cast(
                    enable=self.trainer.fp16,
                    custom_white_list=self.trainer.fp16_custom_white_list,
                    custom_black_list=self.trainer.fp16_custom_black_list,
                    level=self.trainer.fp16_level):
                loss_dict = self.trainer.model(sub_batch)
                if isinstance(loss_dict, paddle.Tensor):
                    loss_dict = {"loss": loss_dict}

            for key in loss_dict:
                loss_dict[key] = loss_dict[key] / self.trainer.accum_steps
                with paddle.no_grad():
                    final_loss_dict[key] += loss_dict[key]

            # loss scaling if using fp16 otherwise do nothing
            scaled = self.trainer.scaler.scale(loss_dict["loss"])
            scaled.backward()
        return final_loss_dict

    def train_one_step(self, batch):
        loss_dict = self.forward_backward(batch)
        self.trainer.scaler.step(self.trainer.optimizer)
        self.trainer.scaler.update()
        self.trainer.optimizer.clear_grad()
        return loss_dict
