"""Pretraining on ERA5 with FSDP, started by srun.

srun -n 8 python train.py configs/era5_small.yaml
"""

import functools
import os
import sys
import time

import torch
import torch.distributed as dist
import yaml
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from climate.data import build_loader, latitude_weights
from climate.vit import Block, ClimateViT


def setup(world_rank, world_size):
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group("nccl", rank=world_rank, world_size=world_size)


def configure_optimizer(model, lr, beta_1, beta_2, weight_decay):
    decay, no_decay = [], []
    for name, m in model.named_parameters():
        (no_decay if "position" in name else decay).append(m)
    return torch.optim.AdamW(
        [
            {"params": decay, "lr": lr, "betas": (beta_1, beta_2), "weight_decay": weight_decay},
            {"params": no_decay, "lr": lr, "betas": (beta_1, beta_2), "weight_decay": 0},
        ]
    )


def configure_scheduler(optimizer, warmup_steps, max_steps):
    warmup = LinearLR(optimizer, 1e-3, 1.0, warmup_steps)
    cosine = CosineAnnealingLR(optimizer, max_steps - warmup_steps)
    return SequentialLR(optimizer, [warmup, cosine], [warmup_steps])


def training_step(batch, model, weights, device):
    x, y = (each.to(device, non_blocking=True) for each in batch)
    loss, _ = model(x, y, weights)
    return loss


@torch.no_grad()
def validate(model, loader, weights, device):
    model.eval()
    losses = [training_step(batch, model, weights, device).float() for batch in loader]
    total = torch.stack(losses).mean()
    dist.all_reduce(total, dist.ReduceOp.AVG)
    model.train()
    return total.item()


def main(device, local_rank):
    world_size = int(os.environ["SLURM_NTASKS"])
    world_rank = dist.get_rank()
    config_path = sys.argv[1]
    conf = yaml.load(open(config_path, "r"), Loader=yaml.FullLoader)
    if world_rank == 0:
        print(conf, flush=True)

    max_epochs = conf["trainer"]["max_epochs"]
    data_type = conf["trainer"]["data_type"]
    use_grad_scaler = conf["trainer"]["use_grad_scaler"]
    checkpoint_path = conf["trainer"]["checkpoint_path"]
    checkpoint_filename = conf["trainer"]["checkpoint_filename"]
    resume_from_checkpoint = conf["trainer"]["resume_from_checkpoint"]
    lr = float(conf["model"]["lr"])
    beta_1 = float(conf["model"]["beta_1"])
    beta_2 = float(conf["model"]["beta_2"])
    weight_decay = float(conf["model"]["weight_decay"])
    warmup_steps = conf["model"]["warmup_steps"]
    max_steps = conf["model"]["max_steps"]
    variables = conf["model"]["in_variables"]

    model = ClimateViT(
        in_variables=variables,
        img_size=conf["model"]["img_size"],
        patch_size=conf["model"]["patch_size"],
        embed_dim=conf["model"]["embed_dim"],
        depth=conf["model"]["depth"],
        num_heads=conf["model"]["num_heads"],
        drop_rate=conf["model"]["drop_rate"],
    ).to(device)

    # FSDP, in the precision of the configuration
    if data_type == "float32":
        precision_dt = torch.float32
    elif data_type == "bfloat16":
        precision_dt = torch.bfloat16
    else:
        raise RuntimeError("Data type not supported")
    bfloat_policy = MixedPrecision(
        param_dtype=precision_dt,
        # Gradient communication precision.
        reduce_dtype=precision_dt,
        # Buffer precision.
        buffer_dtype=precision_dt,
    )
    my_auto_wrap_policy = functools.partial(
        transformer_auto_wrap_policy, transformer_layer_cls={Block}
    )
    model = FSDP(
        model,
        device_id=local_rank,
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        auto_wrap_policy=my_auto_wrap_policy,
        mixed_precision=bfloat_policy,
        use_orig_params=True,
        limit_all_gathers=True,
    )
    optimizer = configure_optimizer(model, lr, beta_1, beta_2, weight_decay)
    scheduler = configure_scheduler(optimizer, warmup_steps, max_steps)

    epoch_start = 0
    filename = os.path.join(checkpoint_path, checkpoint_filename)
    if resume_from_checkpoint:
        checkpoint = torch.load(filename + "_rank_" + str(world_rank) + ".ckpt", map_location="cpu")
        model.load_state_dict(checkpoint["model_state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
        scheduler.load_state_dict(checkpoint["scheduler_state_dict"])
        epoch_start = checkpoint["epoch"] + 1
        del checkpoint

    if use_grad_scaler:
        scaler = ShardedGradScaler(init_scale=8192, growth_interval=100)
        min_scale = 128

    train_loader = build_loader(conf["data"], variables, "train", world_rank, world_size)
    valid_loader = build_loader(conf["data"], variables, "valid", world_rank, world_size)
    weights = latitude_weights(conf["model"]["img_size"][0]).to(device)

    model.train()
    for epoch in range(epoch_start, epoch_start + max_epochs):
        train_loader.sampler.set_epoch(epoch)
        epoch_loss = torch.zeros((), device=device)
        start = time.time()
        for counter, batch in enumerate(train_loader):
            loss = training_step(batch, model, weights, device)
            epoch_loss += loss.detach()
            if world_rank == 0 and counter % 10 == 0:
                print("epoch: ", epoch, "batch_idx", counter, "it_loss ", loss.item(), flush=True)

            if use_grad_scaler:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                if scaler._scale < min_scale:
                    scaler._scale = torch.tensor(min_scale).to(scaler._scale)
            else:
                loss.backward()
                optimizer.step()

            scheduler.step()
            optimizer.zero_grad()
        valid = validate(model, valid_loader, weights, device)
        if world_rank == 0:
            mean = epoch_loss.item() / len(train_loader)
            print("epoch: ", epoch, mean, valid, time.time() - start, flush=True)
        state = {
            "epoch": epoch,
            "model_state_dict": model.state_dict(),
            "optimizer_state_dict": optimizer.state_dict(),
            "scheduler_state_dict": scheduler.state_dict(),
        }
        os.makedirs(checkpoint_path, exist_ok=True)
        torch.save(state, filename + "_rank_" + str(world_rank) + ".ckpt")
        dist.barrier()


if __name__ == "__main__":
    world_size = int(os.environ["SLURM_NTASKS"])
    world_rank = int(os.environ["SLURM_PROCID"])
    local_rank = int(os.environ["SLURM_LOCALID"])
    torch.cuda.set_device(local_rank)
    setup(world_rank, world_size)
    main(torch.cuda.current_device(), local_rank)
    dist.destroy_process_group()
