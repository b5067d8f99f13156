"""Image classification. A yaml passed with -c changes the defaults of the other options.

    python train.py -c configs/vit_small.yaml --data-dir /data/imagenet --epochs 100
"""

import argparse
import logging
import time
from contextlib import suppress
from functools import partial

import torch
import torch.nn as nn
import yaml
from vision.data import create_loader
from vision.model import VisionTransformer
from vision.scaler import NativeScaler, dispatch_clip_grad

_logger = logging.getLogger("train")

config_parser = parser = argparse.ArgumentParser(description="Config", add_help=False)
parser.add_argument("-c", "--config", default="", type=str, metavar="FILE")

parser = argparse.ArgumentParser(description="ImageNet training")
group = parser.add_argument_group("Dataset and model")
group.add_argument("--data-dir", metavar="DIR", default="./imagenet")
group.add_argument("--embed-dim", type=int, default=192)
group.add_argument("--depth", type=int, default=12)
group.add_argument("--num-classes", type=int, default=1000)
group.add_argument("-b", "--batch-size", type=int, default=128)
group = parser.add_argument_group("Optimizer")
group.add_argument("--lr", type=float, default=1e-3)
group.add_argument("--weight-decay", type=float, default=0.05)
group.add_argument("--epochs", type=int, default=300)
group.add_argument("--grad-accum-steps", type=int, default=1, metavar="N")
group.add_argument("--clip-grad", type=float, default=None, metavar="NORM")
group.add_argument("--clip-mode", type=str, default="norm", help='"norm", "value" or "agc"')
group.add_argument("--smoothing", type=float, default=0.1)
group = parser.add_argument_group("System")
group.add_argument("--device", default="cuda", type=str)
group.add_argument("--amp", action="store_true", default=False)
group.add_argument("--amp-dtype", default="bfloat16", type=str, help="lower precision of --amp")
group.add_argument("--log-interval", type=int, default=50)


def _parse_args():
    args_config, remaining = config_parser.parse_known_args()
    if args_config.config:
        with open(args_config.config) as f:
            cfg = yaml.safe_load(f)
            parser.set_defaults(**cfg)
    return parser.parse_args(remaining)


def main():
    logging.basicConfig(level=logging.INFO)
    args = _parse_args()
    device = torch.device(args.device)

    amp_dtype = torch.float16
    if args.amp:
        assert args.amp_dtype in ("float16", "bfloat16")
        if args.amp_dtype == "bfloat16":
            amp_dtype = torch.bfloat16

    model = VisionTransformer(args.num_classes, args.embed_dim, args.depth).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)

    amp_autocast = suppress  # does nothing
    loss_scaler = None
    if args.amp:
        amp_autocast = partial(torch.autocast, device_type=device.type, dtype=amp_dtype)
        if device.type in ("cuda",) and amp_dtype == torch.float16:
            loss_scaler = NativeScaler(device=device.type)
        _logger.info("Training in mixed precision with native PyTorch AMP.")

    loader = create_loader(args.data_dir, args.batch_size)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=args.smoothing)
    for epoch in range(args.epochs):
        loss = train_one_epoch(
            epoch, model, loader, optimizer, loss_fn, args, device, amp_autocast, loss_scaler
        )
        _logger.info("epoch %d: %.4f", epoch, loss)
        torch.save(model.state_dict(), "last.pth")


def train_one_epoch(
    epoch, model, loader, optimizer, loss_fn, args, device, amp_autocast=suppress, loss_scaler=None
):
    has_no_sync = hasattr(model, "no_sync")
    model.train()
    accum_steps = args.grad_accum_steps
    last_accum_steps = len(loader) % accum_steps
    last_batch_idx = len(loader) - 1
    last_batch_idx_to_accum = len(loader) - last_accum_steps

    total = 0.0
    start = time.time()
    optimizer.zero_grad()
    for batch_idx, (input, target) in enumerate(loader):
        last_batch = batch_idx == last_batch_idx
        need_update = last_batch or (batch_idx + 1) % accum_steps == 0
        if batch_idx >= last_batch_idx_to_accum:
            accum_steps = last_accum_steps
        input, target = input.to(device), target.to(device)

        def _forward():
            with amp_autocast():
                output = model(input)
                loss = loss_fn(output, target)
            if accum_steps > 1:
                loss /= accum_steps
            return loss

        def _backward(_loss):
            if loss_scaler is not None:
                loss_scaler(
                    _loss,
                    optimizer,
                    clip_grad=args.clip_grad,
                    clip_mode=args.clip_mode,
                    parameters=model.parameters(),
                    need_update=need_update,
                )
            else:
                _loss.backward()
                if need_update:
                    if args.clip_grad is not None:
                        dispatch_clip_grad(model.parameters(), args.clip_grad, mode=args.clip_mode)
                    optimizer.step()

        if has_no_sync and not need_update:
            with model.no_sync():
                loss = _forward()
                _backward(loss)
        else:
            loss = _forward()
            _backward(loss)
        total += loss.item() * accum_steps
        if not need_update:
            continue
        optimizer.zero_grad()
        if batch_idx % args.log_interval == 0:
            _logger.info("%d %d: %.4f, %.0fs", epoch, batch_idx, loss.item(), time.time() - start)
    return total / len(loader)


if __name__ == "__main__":
    main()
