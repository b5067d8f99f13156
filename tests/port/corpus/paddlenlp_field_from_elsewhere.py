"""A field whose default another file gives."""

from dataclasses import dataclass

from paddlenlp.trainer import TrainingArguments
from settings import first_scale


@dataclass
class PretrainingArguments(TrainingArguments):
    comment: str
    scale_loss: float = first_scale(1024.0)


args = PretrainingArguments(output_dir="out", fp16=True, comment="large")
