from dataclasses import dataclass, field
from typing import Optional

from paddleformers.trainer import TrainingArguments


@dataclass
class ModelConfig:
    model_name_or_path: str = field(default=None, metadata={"help": "Name or folder of the model."})
    use_flash_attention: bool = field(default=True)


@dataclass
class DataConfig:
    train_dataset_path: str = field(default="train.jsonl")
    max_seq_len: int = field(default=2048, metadata={"help": "Longer dialogues are cut."})


@dataclass
class SFTConfig(TrainingArguments):
    """What the library's arguments lack."""

    label_smoothing: float = field(default=0.0)
    z_loss: Optional[float] = field(default=None, metadata={"help": "Weight of log(Z)**2."})
