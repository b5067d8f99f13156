"""What fine-tuning takes. Fields of TrainingArguments have defaults of our own here."""

from dataclasses import dataclass, field

from paddlenlp.trainer import TrainingArguments


@dataclass
class ModelArgument:
    model_name_or_path: str = field(
        default="Qwen/Qwen2.5-0.5B", metadata={"help": "A name, or a folder."}
    )
    freeze_embedding: bool = field(default=False, metadata={"help": "Train all but the embedding."})


@dataclass
class DataArgument:
    dataset_name_or_path: str = field(default="data", metadata={"help": "A folder of .json files."})
    max_length: int = field(default=2048, metadata={"help": "Tokens of a conversation."})
    zero_padding: bool = field(default=False, metadata={"help": "Pack conversations."})


@dataclass
class SFTArguments(TrainingArguments):
    scale_loss: float = field(default=4096.0, metadata={"help": "The first loss scale of fp16."})
    max_grad_norm: float = field(default=0.5, metadata={"help": "The largest joint norm."})
    recompute: bool = field(default=False, metadata={"help": "Compute activations again."})
    do_train: bool = field(default=True)
