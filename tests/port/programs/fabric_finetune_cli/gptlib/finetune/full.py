"""Full fine-tuning: python gptlib/finetune/full.py --config config_hub/tiny_llama.yaml"""

import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import Dict, Optional, Union

sys.path.append(str(Path(__file__).resolve().parents[2]))

import lightning as L
import torch
from lightning.fabric.strategies import FSDPStrategy
from torch.utils.data import DataLoader

from gptlib.args import EvalArgs, TrainArgs
from gptlib.data import Alpaca
from gptlib.model import GPT, Block, Config
from gptlib.utils import CLI, chunked_cross_entropy, get_default_supported_precision, instantiate_torch_optimizer, parse_devices


def setup(
    checkpoint_dir: Path = Path("checkpoints/TinyLlama-1.1B"),
    out_dir: Path = Path("out/finetune/full"),
    precision: Optional[str] = None,
    devices: Union[int, str] = 1,
    num_nodes: int = 1,
    data: Optional[Alpaca] = None,
    train: TrainArgs = TrainArgs(
        save_interval=1000,
        log_interval=1,
        global_batch_size=16,
        micro_batch_size=1,
        lr_warmup_steps=100,
        epochs=5,
        max_seq_length=None,
    ),
    eval: EvalArgs = EvalArgs(interval=600, max_iters=100),
    optimizer: Union[str, Dict] = "AdamW",
    seed: int = 1337,
) -> None:
    """Finetune a model.

    Arguments:
        precision: The precision to use for finetuning. Possible choices: "bf16-true", "bf16-mixed", "32-true".
        devices: How many devices/GPUs to use
        train: Training-related arguments. See ``gptlib.args.TrainArgs`` for details.
        optimizer: An optimizer name (such as "AdamW") or config.
    """
    data = Alpaca() if data is None else data
    devices = parse_devices(devices)
    config = Config.from_file(checkpoint_dir / "model_config.yaml")
    precision = precision or get_default_supported_precision(training=True)

    if devices * num_nodes > 1:
        strategy = FSDPStrategy(
            auto_wrap_policy={Block},
            activation_checkpointing_policy={Block},
            state_dict_type="full",
            limit_all_gathers=True,
            cpu_offload=False,
        )
    else:
        strategy = "auto"

    fabric = L.Fabric(devices=devices, num_nodes=num_nodes, strategy=strategy, precision=precision)
    fabric.launch(main, devices, seed, config, data, checkpoint_dir, out_dir, train, eval, optimizer, num_nodes)


def main(
    fabric: L.Fabric,
    devices: int,
    seed: int,
    config: Config,
    data: Alpaca,
    checkpoint_dir: Path,
    out_dir: Path,
    train: TrainArgs,
    eval: EvalArgs,
    optimizer: Union[str, Dict],
    num_nodes: int = 1,
) -> None:
    train_dataloader = DataLoader(data, batch_size=train.micro_batch_size, shuffle=True, num_workers=4)
    train_dataloader = fabric.setup_dataloaders(train_dataloader)
    steps_per_epoch = len(train_dataloader) // train.gradient_accumulation_iters(devices, num_nodes)
    lr_max_steps = min(train.epochs * steps_per_epoch, (train.max_steps or float("inf")))

    fabric.seed_everything(seed)  # same seed for every process to init model (FSDP)
    if fabric.global_rank == 0:
        os.makedirs(out_dir, exist_ok=True)
    with fabric.init_module(empty_init=(fabric.world_size > 1)):
        model = GPT(config)
    model = fabric.setup(model)
    optimizer = instantiate_torch_optimizer(optimizer, model.parameters())
    optimizer = fabric.setup_optimizers(optimizer)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=int(lr_max_steps))
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "iter_num": 0, "step_count": 0}
    fabric.load_raw(checkpoint_dir / "lit_model.pth", model)

    train_time = time.perf_counter()
    fit(fabric, state, train_dataloader, devices, train, eval, num_nodes)
    fabric.print(f"Training time: {(time.perf_counter() - train_time):.2f}s")
    fabric.save(out_dir / "lit_model.pth", {"model": state["model"]})
    fabric.print(dataclasses.asdict(train))


def fit(fabric, state, train_dataloader, devices, train, eval, num_nodes=1):
    model = state["model"]
    optimizer = state["optimizer"]
    scheduler = state["scheduler"]
    max_steps = train.max_steps or float("inf")
    epoch = 0
    train_iterator = iter(train_dataloader)

    while state["step_count"] < max_steps:
        state["iter_num"] += 1
        try:
            batch = next(train_iterator)
        except StopIteration:
            epoch, train_iterator = epoch + 1, iter(train_dataloader)
            if epoch >= train.epochs:
                break
            batch = next(train_iterator)
        input_ids, targets = batch["input_ids"], batch["labels"]

        is_accumulating = state["iter_num"] % train.gradient_accumulation_iters(devices, num_nodes) != 0
        with fabric.no_backward_sync(model, enabled=is_accumulating):
            logits = model(input_ids)
            # shift the targets such that output n predicts token n+1
            loss = chunked_cross_entropy(logits[..., :-1, :], targets[..., 1:])
            fabric.backward(loss / train.gradient_accumulation_iters(devices, num_nodes))

        if not is_accumulating:
            if train.max_norm is not None:
                fabric.clip_gradients(model, optimizer, max_norm=train.max_norm)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            state["step_count"] += 1

        if state["iter_num"] % train.log_interval == 0:
            fabric.print(f"Epoch {epoch + 1} | iter {state['iter_num']} step {state['step_count']} | loss {loss.item():.3f}")


if __name__ == "__main__":
    torch.set_float32_matmul_precision("high")
    CLI(setup)
