"""Trains a small GPT.

    deepspeed train.py --deepspeed --deepspeed_config configs/zero1_fp16.json
"""

import argparse

import deepspeed
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset


class GPT(nn.Module):
    def __init__(self, vocab, dim, depth, length):
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.positions = nn.Parameter(torch.zeros(length, dim))
        layer = nn.TransformerEncoderLayer(dim, 8, 4 * dim, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        inputs, targets = ids[:, :-1], ids[:, 1:]
        n = inputs.shape[1]
        mask = torch.full((n, n), float("-inf"), device=ids.device, dtype=self.positions.dtype).triu(1)
        hidden = self.blocks(self.tokens(inputs) + self.positions[:n], mask=mask)
        return F.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--save_dir", default="checkpoints")
    parser = deepspeed.add_config_arguments(parser)
    parser.set_defaults(deepspeed_config="configs/zero3_bf16.json")
    return parser.parse_args()


def main():
    args = parse_arguments()
    deepspeed.init_distributed()
    model = GPT(50304, args.dim, args.depth, args.length)
    parameters = [p for p in model.parameters() if p.requires_grad]
    dataset = TensorDataset(torch.randint(0, 50304, (4096, args.length)))
    engine, optimizer, loader, scheduler = deepspeed.initialize(
        args=args, model=model, model_parameters=parameters, training_data=dataset
    )
    step = 0
    for epoch in range(args.epochs):
        for (ids,) in loader:
            loss = engine(ids.to(engine.local_rank))
            engine.backward(loss)
            at_boundary = engine.is_gradient_accumulation_boundary()
            engine.step()
            if at_boundary:
                step += 1
                if step % 20 == 0 and engine.local_rank == 0:
                    print(epoch, step, loss.item(), scheduler.get_last_lr()[0])
        engine.save_checkpoint(args.save_dir, tag=f"epoch{epoch}")


if __name__ == "__main__":
    main()
