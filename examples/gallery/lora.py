"""LoRA: a Llama is trained on help texts, then low-rank adapters of it on Python source.

    python lora.py --policy O2:bfloat16 --log run.csv --save adapters

"# ampbridge" ends each statement that ampbridge adds; --policy O0 trains in float32.
"""

import argparse
import inspect
import math
import tarfile
from pydoc_data.topics import topics

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader, Dataset, RandomSampler
from transformers import LlamaConfig, LlamaForCausalLM

import ampbridge as amp  # ampbridge

POLICIES = ("O0", "O1", "O1:bfloat16", "O2", "O2:bfloat16")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CONTEXT = 64


class Text(Dataset):
    """Pieces of a text, as bytes."""

    def __init__(self, text):
        self.data = torch.frombuffer(bytearray(text, "utf-8"), dtype=torch.uint8)

    def __len__(self):
        return len(self.data) - CONTEXT

    def __getitem__(self, start):
        return self.data[start : start + CONTEXT].long()


def batches(text, steps):
    sampler = RandomSampler(text, replacement=True, num_samples=16 * steps)
    return DataLoader(text, 16, sampler=sampler)


def loss_fn(model, x):
    return model(input_ids=x, labels=x).loss


@torch.no_grad()
def bits_per_byte(model, text):
    model.eval()
    pieces = text.data[: len(text.data) // CONTEXT * CONTEXT].view(-1, CONTEXT).long()
    losses = [loss_fn(model, x.to(DEVICE)).float() for x in pieces.split(64)]
    model.train()
    return torch.stack(losses).mean().item() / math.log(2)


def pretrained(text, steps):
    """A base model; yours comes from ``AutoModelForCausalLM.from_pretrained``."""
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=CONTEXT,
    )
    model = LlamaForCausalLM(config).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for number, x in enumerate(batches(text, steps), 1):
        optimizer.zero_grad()
        loss = loss_fn(model, x.to(DEVICE))
        loss.backward()
        optimizer.step()
        if number % 100 == 0:
            print(f"base model: step {number}  loss {loss.item():.3f}", flush=True)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--policy", default="O2:bfloat16", choices=POLICIES)
    parser.add_argument("--base-steps", type=int, default=400)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--log", action="append", default=[], metavar="FILE", help="a CSV file")
    parser.add_argument("--save", metavar="FOLDER", help="write the adapters to FOLDER")
    args = parser.parse_args()

    torch.manual_seed(0)
    source = inspect.getsource(tarfile)
    train, test = Text(source[:-15_000]), Text(source[-15_000:])

    log = amp.StepLog(*args.log)  # ampbridge
    base = pretrained(Text("\n".join(topics.values())), args.base_steps)
    before = bits_per_byte(base, test)
    base.to(getattr(torch, amp.Policy.parse(args.policy).compute_dtype))  # ampbridge
    config = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.05, target_modules="all-linear")
    model = get_peft_model(base, config)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 5e-3)

    step = amp.train_step(loss_fn, model, optimizer, policy=args.policy)  # ampbridge
    for number, x in enumerate(batches(train, args.steps), 1):
        log(step(x.to(DEVICE)))  # ampbridge
        if number % 100 == 0:
            print(f"step {number}  {bits_per_byte(model, test):.2f} bits per byte", flush=True)

    if args.save:
        with amp.undecorated(model):  # ampbridge
            model.save_pretrained(args.save)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(f"bits per byte of the base model: {before:.2f}")
    print(f"bits per byte with adapters: {bits_per_byte(model, test):.2f}")
    print(f"parameters: {sum(p.nbytes for p in model.parameters()) / 1e6:.2f} MB")
    print(f"trained: {trained / sum(p.numel() for p in model.parameters()):.1%} of the parameters")
    print(f"skipped steps: {log.skipped}")  # ampbridge


if __name__ == "__main__":
    main()
