import json
import os

import numpy as np
import paddle
from paddle import nn
from paddle.io import Dataset
from paddlenlp.transformers import AutoModel


class ColumnPairs(Dataset):
    """Pairs of columns, joined to one text, and the relation between them."""

    def __init__(self, folder, tokenizer, max_length):
        with open(os.path.join(folder, "pairs.json"), encoding="utf-8") as file:
            self.rows = json.load(file)
        names = sorted({row["relation"] for row in self.rows})
        self.index = {name: i for i, name in enumerate(names)}
        self.num_classes = len(names)
        self.tokenizer = tokenizer
        self.max_length = max_length

    def class_weights(self):
        counts = np.zeros(self.num_classes, "float32")
        for row in self.rows:
            counts[self.index[row["relation"]]] += 1
        return paddle.to_tensor(1.0 / np.sqrt(np.maximum(counts, 1)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        encoded = self.tokenizer(row["first"], row["second"], max_length=self.max_length)
        return encoded["input_ids"], self.index[row["relation"]]


def collate(samples):
    longest = max(len(ids) for ids, _ in samples)
    data = np.zeros((len(samples), longest), "int64")
    mask = np.zeros((len(samples), longest), "int64")
    for row, (ids, _) in enumerate(samples):
        data[row, : len(ids)] = ids
        mask[row, : len(ids)] = 1
    label = np.asarray([label for _, label in samples], "int64")
    arrays = {"data": data, "mask": mask, "label": label}
    return {name: paddle.to_tensor(array) for name, array in arrays.items()}


class ColumnPairModel(nn.Layer):
    def __init__(self, name, num_classes, dropout):
        super().__init__()
        self.bert = AutoModel.from_pretrained(name)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(self.bert.config["hidden_size"], num_classes)

    def forward(self, data, mask):
        states, _ = self.bert(data, attention_mask=mask)
        return self.classifier(self.dropout(states[:, 0]))
