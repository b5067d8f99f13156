"""Fine-tune LUKE for entity typing on Open Entity."""

import argparse
import json
import logging
import os

import paddle
import paddle.nn as nn
import paddle.nn.functional as F
from paddle.io import DataLoader, Dataset
from paddlenlp.transformers import LukeForEntityClassification, LukeTokenizer

from utils.trainer import Trainer

parser = argparse.ArgumentParser(description="LUKE FOR OPEN ENTITY")
parser.add_argument("--output_dir", type=str, required=True)
parser.add_argument("--data_dir", type=str, required=True)
parser.add_argument("--model_type", type=str, default="luke-large")
parser.add_argument("--num_train_epochs", type=int, default=2)
parser.add_argument("--train_batch_size", type=int, default=8)
parser.add_argument("--eval_batch_size", type=int, default=8)
parser.add_argument("--gradient_accumulation_steps", type=int, required=True)
parser.add_argument("--learning_rate", type=float, default=1e-5)
parser.add_argument("--weight_decay", type=float, default=0.01)
parser.add_argument("--warmup_proportion", type=float, default=0.06)
parser.add_argument("--max_grad_norm", type=float, default=1.0)
parser.add_argument("--max_seq_length", type=int, default=128)
parser.add_argument("--fp16", action="store_true")
parser.add_argument("--device", type=str, default="gpu", choices=["cpu", "gpu"])
parser.add_argument("--seed", type=int, default=12)


class TypingData(Dataset):
    """Mentions of entities, each with the labels that hold of it."""

    def __init__(self, path, tokenizer, labels, max_seq_length):
        super().__init__()
        with open(path, encoding="utf-8") as f:
            self.entries = [json.loads(line) for line in f]
        self.tokenizer = tokenizer
        self.labels = {label: i for i, label in enumerate(labels)}
        self.max_seq_length = max_seq_length

    def __len__(self):
        return len(self.entries)

    def __getitem__(self, index):
        entry = self.entries[index]
        encoded = self.tokenizer(
            entry["sent"],
            entity_spans=[(entry["start"], entry["end"])],
            max_seq_len=self.max_seq_length,
        )
        target = [0.0] * len(self.labels)
        for label in entry["labels"]:
            target[self.labels[label]] = 1.0
        return encoded, target


def collate(samples):
    inputs = {
        key: paddle.to_tensor([encoded[key] for encoded, _ in samples])
        for key in ("input_ids", "token_type_ids", "entity_ids", "entity_position_ids")
    }
    return inputs, paddle.to_tensor([target for _, target in samples])


class TypingModel(nn.Layer):
    def __init__(self, name, num_labels):
        super().__init__()
        self.luke = LukeForEntityClassification.from_pretrained(name, num_classes=num_labels)

    def forward(self, inputs, labels=None):
        logits = self.luke(**inputs)
        if labels is None:
            return logits
        return F.binary_cross_entropy_with_logits(logits, labels)


def evaluate(model, loader):
    model.eval()
    right = total = 0
    with paddle.no_grad():
        for inputs, labels in loader:
            predicted = (model(inputs) > 0).astype("float32")
            right += int((predicted * labels).sum())
            total += int(labels.sum())
    model.train()
    return right / max(total, 1)


def main():
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    paddle.set_device(args.device)
    paddle.seed(args.seed)
    tokenizer = LukeTokenizer.from_pretrained(args.model_type)
    with open(os.path.join(args.data_dir, "types.txt")) as f:
        labels = [line.strip() for line in f]

    def loader(split, size, shuffle):
        path = os.path.join(args.data_dir, f"{split}.json")
        data = TypingData(path, tokenizer, labels, args.max_seq_length)
        return DataLoader(data, batch_size=size, shuffle=shuffle, collate_fn=collate)

    train = loader("train", args.train_batch_size, True)
    dev = loader("dev", args.eval_batch_size, False)
    model = TypingModel(args.model_type, len(labels))
    steps = len(train) // args.gradient_accumulation_steps * args.num_train_epochs
    trainer = Trainer(args, model, train, steps, lambda: evaluate(model, dev))
    trainer.train()
    paddle.save(model.state_dict(), os.path.join(args.output_dir, "model.pdparams"))


if __name__ == "__main__":
    main()
