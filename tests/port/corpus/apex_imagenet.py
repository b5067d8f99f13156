"""apex's ImageNet example: everything from the command line."""

import argparse

from apex import amp

parser = argparse.ArgumentParser()
parser.add_argument("--opt-level", type=str, default="O2")
parser.add_argument("--keep-batchnorm-fp32", type=str, default=None)
parser.add_argument("--loss-scale", type=str, default="128.0")
args = parser.parse_args()

model, optimizer = amp.initialize(
    model,
    optimizer,
    opt_level=args.opt_level,
    keep_batchnorm_fp32=args.keep_batchnorm_fp32,
    loss_scale=args.loss_scale,
)
for input, target in loader:
    loss = criterion(model(input), target)
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
