import numpy as np


def convert_example(example, tokenizer, max_seq_len):
    prompt = tokenizer(example["src"])["input_ids"]
    answer = [*tokenizer(example["tgt"])["input_ids"], tokenizer.eos_token_id]
    ids = (prompt + answer)[:max_seq_len]
    labels = ([-100] * len(prompt) + answer)[:max_seq_len]
    return {"input_ids": ids, "labels": labels}


class DialogueCollator:
    def __init__(self, pad_token_id):
        self.pad_token_id = pad_token_id

    def __call__(self, examples):
        longest = max(len(example["input_ids"]) for example in examples)
        batch = {"input_ids": [], "labels": []}
        for example in examples:
            missing = longest - len(example["input_ids"])
            batch["input_ids"].append(example["input_ids"] + [self.pad_token_id] * missing)
            batch["labels"].append(example["labels"] + [-100] * missing)
        return {key: np.array(rows, dtype="int64") for key, rows in batch.items()}
