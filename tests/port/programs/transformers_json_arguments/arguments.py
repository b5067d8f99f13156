"""Arguments, as fields of dataclasses."""

from dataclasses import dataclass, field

from transformers import TrainingArguments


@dataclass
class ModelArguments:
    vocab_size: int = field(default=1024, metadata={"help": "Number of tokens."})
    n_embd: int = field(default=256, metadata={"help": "Width."})
    n_layer: int = field(default=6, metadata={"help": "Depth."})
    property_coefficient: float = field(default=1e-2, metadata={"help": "Weight of the property loss."})


@dataclass
class DataArguments:
    max_length: int = field(default=128, metadata={"help": "Tokens of a molecule."})


@dataclass
class PretrainArguments(TrainingArguments):
    """Defaults for pre-training: clipping is tighter than Trainer's 1.0."""

    output_dir: str = field(default="out")
    max_grad_norm: float = field(default=0.25)
    learning_rate: float = field(default=5e-4)
    bf16: bool = field(default=False, metadata={"help": "For Ampere and later."})
    remove_unused_columns: bool = field(default=False)
