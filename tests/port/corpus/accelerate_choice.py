"""The precision as an argument with choices: a default that holds, unless the user says otherwise."""

import argparse

from accelerate import Accelerator

parser = argparse.ArgumentParser()
parser.add_argument(
    "--mixed_precision", type=str, default="bf16", choices=["no", "fp16", "bf16", "fp8"]
)
parser.add_argument("--max_grad_norm", type=float, default=1.0)
args = parser.parse_args()

accelerator = Accelerator(cpu=False, mixed_precision=args.mixed_precision)
model, optimizer = accelerator.prepare(model, optimizer)
for step, batch in enumerate(loader):
    loss = model(**batch).loss
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm)
    optimizer.step()
    optimizer.zero_grad()
