"""Fine-tuning of Whisper: python scripts/finetune.py --config configs/turbo_swiss.yaml"""

import argparse
import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import whisper
from torch.nn.parallel import DistributedDataParallel
from whisper.tokenizer import get_tokenizer

import speech_ft.runtime as rt
from speech_ft.data import get_dataloader
from speech_ft.steps import infinite_iter, save_model, train_step
from speech_ft.utils import calculate_training_steps, get_optimizer, get_scheduler, read_config, resolve_local_accum_grad_steps


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def main_loop(model, train_loader, optimizer, scheduler, save_path, t_config, scaler=None):
    train_iter = infinite_iter(train_loader)
    min_loss = float("inf")
    for step in range(1, t_config["train_steps"] + 1):
        train_loss = train_step(model, train_iter, optimizer, scheduler, t_config, scaler=scaler)
        if train_loss > t_config["max_train_loss"]:
            raise RuntimeError(f"Train loss {train_loss} is too large")
        if step % t_config["val_steps"] == 0 and rt.IS_MAIN:
            print(f"step {step}: loss {train_loss:.4f}, lr {scheduler.get_last_lr()[0]:.2e}")
            if train_loss < min_loss:
                min_loss = train_loss
                save_model(model, f"{save_path}/best_model.pt")
    save_model(model, f"{save_path}/last_model.pt")


def main(config):
    set_seed(config["seed"])
    rt.init()
    config["training"]["accum_grad_steps"] = resolve_local_accum_grad_steps(
        int(config["training"]["accum_grad_steps"]), rt.WORLD_SIZE)

    # The correct way to use bf16 is via mixed_precision_training=True and mp_dtype="bf16"
    if config["model"].get("bfloat16", False):
        raise ValueError("For bf16 use training.mixed_precision_training=True and training.mp_dtype='bf16'")
    whisper_model = whisper.load_model(config["model"]["init_name"], device="cpu")
    whisper_model.to(rt.DEVICE)
    if config["training"]["train_only_decoder"]:
        for p in whisper_model.encoder.parameters():
            p.requires_grad = False
    model = whisper_model
    if rt.IS_DISTRIBUTED:
        model = DistributedDataParallel(whisper_model, device_ids=[rt.LOCAL_RANK])

    tokenizer = get_tokenizer(multilingual=True, task="transcribe")
    train_loader = get_dataloader(config["dataset"], tokenizer, n_mels=whisper_model.dims.n_mels)
    config["training"]["train_steps"] = calculate_training_steps(config, len(train_loader))
    config["training"]["val_steps"] = max(1, int(config["training"]["eval_steps"] * len(train_loader)))

    optimizer = get_optimizer(model, config["optimizer"])
    scheduler = get_scheduler(optimizer, config["lr_scheduler"], config["training"]["train_steps"])
    save_path = os.path.join(config["save_dir"], os.getenv("SLURM_JOB_ID", "local"))
    os.makedirs(save_path, exist_ok=True)

    scaler = None
    if config["training"]["mixed_precision_training"] and config["training"]["mp_dtype"] == "fp16":
        scaler = torch.amp.GradScaler("cuda")
    main_loop(model, train_loader, optimizer, scheduler, save_path, config["training"], scaler=scaler)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fine-tune Whisper")
    parser.add_argument("--config", type=str, required=True, help="Path to the YAML configuration file")
    args = parser.parse_args()
    main(read_config(args.config))
