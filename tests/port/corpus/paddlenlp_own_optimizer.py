"""A Trainer with an optimizer and a region of its own, over a model with another region inside."""

import contextlib

import paddle
from paddlenlp.trainer import Trainer, TrainingArguments


class Captioner(paddle.nn.Layer):
    def forward(self, images, words):
        return self.of_words(self.vision(images), words)

    def of_words(self, seen, words):
        with paddle.amp.auto_cast(level="O2"):
            return self.language(seen, words)


class OwnTrainer(Trainer):
    def create_optimizer_and_scheduler(self, num_training_steps):
        self.optimizer = paddle.optimizer.AdamW(parameters=self.model.parameters())

    def autocast_smart_context_manager(self):
        if self.enable_autocast_context_manager:
            return paddle.amp.auto_cast(True)
        return contextlib.nullcontext()


args = TrainingArguments(output_dir="out", fp16=True, fp16_opt_level="O1", max_grad_norm=2.0)
trainer = OwnTrainer(model=Captioner(), args=args)
trainer.train()
