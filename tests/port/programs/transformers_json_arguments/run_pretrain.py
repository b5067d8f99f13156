"""Pre-trains a model of molecules: `python run_pretrain.py configs/small.json`."""

import os
import sys

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2Model, HfArgumentParser, Trainer, set_seed

from arguments import DataArguments, ModelArguments, PretrainArguments


class Molecules(Dataset):
    def __init__(self, vocab, length, count=2048):
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(0, vocab, (count, length), generator=generator)
        self.weights = torch.rand(count, 1, generator=generator) * 500

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index], "properties": self.weights[index]}


class DoubleHeadsModel(nn.Module):
    def __init__(self, config, num_properties):
        super().__init__()
        self.transformer = GPT2Model(config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.property_head = nn.Linear(config.n_embd, num_properties)

    def forward(self, input_ids, labels=None, properties=None):
        hidden = self.transformer(input_ids).last_hidden_state
        logits = self.lm_head(hidden)
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        # weights of molecules overflow in half precision
        with torch.autocast(hidden.device.type, enabled=False):
            predicted = self.property_head(hidden[:, -1].float())
            property_loss = nn.functional.mse_loss(predicted, properties.float())
        return {"loss": loss, "property_loss": property_loss, "logits": logits}


class PropertyTrainer(Trainer):
    def __init__(self, *args, coefficient=1e-2, **kwargs):
        super().__init__(*args, **kwargs)
        self.coefficient = coefficient

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        outputs = model(**inputs)
        loss = outputs["loss"] + self.coefficient * outputs["property_loss"]
        return (loss, outputs) if return_outputs else loss


def load_arguments():
    parser = HfArgumentParser((ModelArguments, DataArguments, PretrainArguments))
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        return parser.parse_json_file(json_file=os.path.abspath(sys.argv[1]))
    return parser.parse_args_into_dataclasses()


def main():
    model_args, data_args, training_args = load_arguments()
    set_seed(training_args.seed)
    config = GPT2Config(
        vocab_size=model_args.vocab_size, n_embd=model_args.n_embd, n_layer=model_args.n_layer, n_head=8
    )
    trainer = PropertyTrainer(
        model=DoubleHeadsModel(config, num_properties=1),
        args=training_args,
        train_dataset=Molecules(model_args.vocab_size, data_args.max_length),
        coefficient=model_args.property_coefficient,
    )
    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    trainer.save_model()


if __name__ == "__main__":
    main()
