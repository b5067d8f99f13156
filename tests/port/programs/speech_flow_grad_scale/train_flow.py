"""Text to speech by flow matching.

    python train_flow.py --model-config conf/model.json --use-fp16 1 --exp-dir exp/base
"""

import argparse
import json
import logging
import os
from pathlib import Path

import torch
from flow.common import AttributeDict, create_grad_scaler, prepare_input, str2bool, torch_autocast
from flow.data import TtsDataModule
from flow.model import FlowMatchingTts


def get_parser():
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--num-epochs", type=int, default=11)
    parser.add_argument("--exp-dir", type=str, default="exp/flow")
    parser.add_argument("--model-config", type=str, default="conf/model.json")
    parser.add_argument("--base-lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--sanity-check", type=str2bool, default=False)
    parser.add_argument(
        "--use-fp16", type=str2bool, default=True, help="Whether to use half precision training."
    )
    TtsDataModule.add_arguments(parser)
    return parser


def get_params():
    """What no option changes, and what the training counts."""
    return AttributeDict(
        {
            "best_train_loss": float("inf"),
            "batch_idx_train": -1,
            "log_interval": 50,
            "reset_interval": 200,
            "feat_scale": 0.1,
            "condition_drop_ratio": 0.2,
        }
    )


def compute_fbank_loss(params, model, features, features_lens, tokens, is_training):
    device = features.device
    t = torch.rand(features.size(0), 1, 1, device=device)
    noise = torch.randn_like(features)
    with torch.set_grad_enabled(is_training):
        loss = model(
            tokens, features, features_lens, noise, t, params.condition_drop_ratio * is_training
        )
    return loss, {"frames": int(features_lens.sum()), "loss": loss.detach().item()}


def train_one_epoch(params, model, optimizer, scheduler, train_dl, scaler):
    model.train()
    device = next(model.parameters()).device
    tot_loss = 0.0

    def save_bad_model(suffix=""):
        torch.save(model.state_dict(), params.exp_dir / f"bad-model{suffix}.pt")

    for batch_idx, batch in enumerate(train_dl):
        params.batch_idx_train += 1
        tokens, features, features_lens = prepare_input(params, batch, device)
        try:
            with torch_autocast(dtype=torch.float16, enabled=params.use_fp16):
                loss, loss_info = compute_fbank_loss(
                    params, model, features, features_lens, tokens, is_training=True
                )
            tot_loss = tot_loss * (1 - 1 / params.reset_interval) + loss_info["loss"]
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            optimizer.zero_grad()
        except Exception as e:
            logging.info(f"Caught exception: {e}.")
            save_bad_model()
            raise

        if params.batch_idx_train % 100 == 0 and params.use_fp16:
            # The interval of growth can't depend on the scale; a small one shall grow faster.
            cur_grad_scale = scaler._scale.item()
            if cur_grad_scale < 8.0 or (
                cur_grad_scale < 32.0 and params.batch_idx_train % 400 == 0
            ):
                scaler.update(cur_grad_scale * 2.0)
            if cur_grad_scale < 0.01:
                save_bad_model(suffix="-first-warning")
                logging.warning(f"Grad scale is small: {cur_grad_scale}")
            if cur_grad_scale < 1.0e-05:
                save_bad_model()
                raise RuntimeError(f"grad_scale is too small, exiting: {cur_grad_scale}")

        if params.batch_idx_train % params.log_interval == 0:
            cur_grad_scale = scaler._scale.item() if params.use_fp16 else 1.0
            logging.info(
                f"Epoch {params.cur_epoch}, batch {batch_idx}, loss {loss_info['loss']:.4f}, "
                f"tot_loss {tot_loss:.4f}, grad_scale {cur_grad_scale}"
            )
    params.best_train_loss = min(params.best_train_loss, tot_loss)


def scan_pessimistic_batches_for_oom(params, model, optimizer, train_dl):
    """Forward and backward of the longest batches, before hours have passed."""
    device = next(model.parameters()).device
    for batch in train_dl.longest(3):
        tokens, features, features_lens = prepare_input(params, batch, device)
        with torch_autocast(dtype=torch.float16, enabled=params.use_fp16):
            loss, _ = compute_fbank_loss(
                params, model, features, features_lens, tokens, is_training=True
            )
        loss.backward()
        optimizer.zero_grad()


def run(args):
    params = get_params()
    params.update(vars(args))
    with open(params.model_config, encoding="utf-8") as f:
        model_config = json.load(f)
    params.update(model_config["model"])
    params.update(model_config["feature"])
    params.exp_dir = Path(params.exp_dir)
    os.makedirs(params.exp_dir, exist_ok=True)
    torch.manual_seed(params.seed)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = FlowMatchingTts(**model_config["model"]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=params.base_lr)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9999)
    train_dl = TtsDataModule(args).train_dataloader()

    if params.sanity_check:
        scan_pessimistic_batches_for_oom(params, model, optimizer, train_dl)
    scaler = create_grad_scaler(enabled=params.use_fp16, init_scale=1.0)
    for epoch in range(1, params.num_epochs + 1):
        params.cur_epoch = epoch
        train_one_epoch(params, model, optimizer, scheduler, train_dl, scaler)
        torch.save(model.state_dict(), params.exp_dir / f"epoch-{epoch}.pt")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    run(get_parser().parse_args())
