from dataclasses import dataclass, field

import paddle
from paddlenlp.trainer import TrainingArguments


@dataclass
class PretrainingArguments(TrainingArguments):
    min_lr: float = field(default=1e-5)
    scale_loss: float = field(default=512.0, metadata={"help": "the first scale"})


args = PretrainingArguments(output_dir="out", fp16=True, min_lr=1e-6)
