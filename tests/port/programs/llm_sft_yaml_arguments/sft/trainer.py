import paddle
from paddle import nn
from paddleformers.trainer import Trainer


class SFTTrainer(Trainer):
    """Masks the prompt, and adds a loss on the partition function if it is asked to."""

    def compute_loss(self, model, inputs, return_outputs=False):
        labels = inputs.pop("labels")
        logits = model(**inputs)
        loss = nn.functional.cross_entropy(
            logits[:, :-1],
            labels[:, 1:],
            ignore_index=-100,
            label_smoothing=self.args.label_smoothing,
        )
        if self.args.z_loss is not None:
            loss = loss + self.args.z_loss * (paddle.logsumexp(logits, axis=-1) ** 2).mean()
        return (loss, logits) if return_outputs else loss
