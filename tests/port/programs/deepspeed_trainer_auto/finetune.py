"""Fine-tunes a causal language model with ZeRO.

    deepspeed finetune.py --model_name gpt2 --dtype fp16
"""

import argparse

import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments, set_seed

from ds_config import get_train_ds_config


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name", default="gpt2")
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--dtype", required=True, choices=["fp16", "bf16"], help="of training")
    parser.add_argument("--zero_stage", type=int, default=2, choices=[1, 2, 3])
    parser.add_argument("--offload", action="store_true")
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--per_device_batch", type=int, default=4)
    parser.add_argument("--accumulation", type=int, default=8)
    parser.add_argument("--max_grad_norm", type=float, default=0.3)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--seed", type=int, default=1234)
    return parser.parse_args()


class Sentences(torch.utils.data.Dataset):
    def __init__(self, vocab_size, length=128, count=1024):
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(0, vocab_size, (count, length), generator=generator)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def main():
    args = parse_args()
    set_seed(args.seed)
    ds_config = get_train_ds_config(stage=args.zero_stage, offload=args.offload, loss_scale_window=200)
    training_args = TrainingArguments(
        output_dir=args.output_dir,
        per_device_train_batch_size=args.per_device_batch,
        gradient_accumulation_steps=args.accumulation,
        num_train_epochs=args.epochs,
        learning_rate=args.lr,
        max_grad_norm=args.max_grad_norm,
        fp16=args.dtype == "fp16",
        bf16=args.dtype == "bf16",
        deepspeed=ds_config,
        logging_steps=10,
        report_to="none",
    )
    model = AutoModelForCausalLM.from_pretrained(args.model_name)
    model.config.use_cache = False
    trainer = Trainer(model=model, args=training_args, train_dataset=Sentences(model.config.vocab_size))
    trainer.train()
    trainer.save_model(args.output_dir)


if __name__ == "__main__":
    main()
