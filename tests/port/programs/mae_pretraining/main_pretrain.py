"""MAE pretraining using multiple GPUs."""

import argparse
import logging
import math
import os
import random
import time

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.io import DataLoader, DistributedBatchSampler
from paddle.vision import transforms
from paddle.vision.datasets import ImageFolder

from config import get_config, update_config
from transformer import build_mae_pretrain


def get_arguments():
    """return argumeents, this will overwrite the config by (1) yaml file (2) argument values"""
    parser = argparse.ArgumentParser("MAE pretraining")
    parser.add_argument("-cfg", type=str, default=None)
    parser.add_argument("-batch_size", type=int, default=None)
    parser.add_argument("-data_path", type=str, default=None)
    parser.add_argument("-output", type=str, default=None)
    parser.add_argument("-resume", type=str, default=None)
    parser.add_argument("-accum_iter", type=int, default=None)
    parser.add_argument("-amp", action="store_true")
    return parser.parse_args()


def adjust_learning_rate(optimizer, base_lr, warmup_start_lr, warmup_epochs, total_epochs, epoch):
    if epoch < warmup_epochs:
        lr = warmup_start_lr + (base_lr - warmup_start_lr) * epoch / warmup_epochs
    else:
        done = (epoch - warmup_epochs) / (total_epochs - warmup_epochs)
        lr = base_lr * 0.5 * (1.0 + math.cos(math.pi * done))
    optimizer.set_lr(lr)
    return lr


def train_one_epoch(
    dataloader,
    model,
    optimizer,
    base_lr,
    config,
    epoch,
    amp_grad_scaler=None,
    logger=None,
):
    model.train()
    time_st = time.time()
    losses = []
    accum_iter = config.TRAIN.ACCUM_ITER
    optimizer.clear_grad()
    for batch_id, data in enumerate(dataloader):
        images = data[0]
        if batch_id % accum_iter == 0:
            adjust_learning_rate(
                optimizer,
                base_lr,
                config.TRAIN.WARMUP_START_LR,
                config.TRAIN.WARMUP_EPOCHS,
                config.TRAIN.NUM_EPOCHS,
                batch_id / len(dataloader) + epoch - 1,
            )
        # forward
        with paddle.amp.auto_cast(amp_grad_scaler is not None):
            loss = model(images)

        # backward and step
        if amp_grad_scaler is None:
            loss.backward()
            if ((batch_id + 1) % accum_iter == 0) or (batch_id + 1 == len(dataloader)):
                optimizer.step()
                optimizer.clear_grad()
        else:
            amp_grad_scaler.scale(loss).backward()
            if ((batch_id + 1) % accum_iter == 0) or (batch_id + 1 == len(dataloader)):
                amp_grad_scaler.step(optimizer)
                amp_grad_scaler.update()
                optimizer.clear_grad()

        losses.append(float(loss))
        if batch_id % config.REPORT_FREQ == 0 and logger is not None:
            logger.info(
                "Epoch[%03d/%03d], Step[%04d/%04d], Lr: %.6f, Loss: %.5f",
                epoch, config.TRAIN.NUM_EPOCHS, batch_id, len(dataloader), optimizer.get_lr(),
                np.mean(losses),
            )  # fmt: skip
    return float(np.mean(losses)), time.time() - time_st


def build_loader(config):
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(config.DATA.IMAGE_SIZE, scale=(0.2, 1.0)),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(config.DATA.IMAGENET_MEAN, config.DATA.IMAGENET_STD),
        ]
    )
    dataset = ImageFolder(os.path.join(config.DATA.DATA_PATH, "train"), transform=transform)
    sampler = DistributedBatchSampler(
        dataset, batch_size=config.DATA.BATCH_SIZE, shuffle=True, drop_last=True
    )
    return DataLoader(dataset, batch_sampler=sampler, num_workers=config.DATA.NUM_WORKERS)


def main_worker(config):
    if dist.get_world_size() > 1:
        dist.init_parallel_env()
    rank = dist.get_rank()
    paddle.seed(config.SEED + rank)
    np.random.seed(config.SEED + rank)
    random.seed(config.SEED + rank)
    logger = logging.getLogger("mae") if rank == 0 else None
    logging.basicConfig(level=logging.INFO)

    model = build_mae_pretrain(config)
    if dist.get_world_size() > 1:
        model = paddle.DataParallel(model)
    dataloader = build_loader(config)

    effective_batch_size = config.DATA.BATCH_SIZE * config.TRAIN.ACCUM_ITER * dist.get_world_size()
    base_lr = config.TRAIN.BASE_LR * effective_batch_size / 256.0

    if config.TRAIN.GRAD_CLIP:
        clip = paddle.nn.ClipGradByGlobalNorm(config.TRAIN.GRAD_CLIP)
    else:
        clip = None
    optimizer = paddle.optimizer.AdamW(
        parameters=model.parameters(),
        learning_rate=base_lr,
        beta1=config.TRAIN.OPTIMIZER.BETAS[0],
        beta2=config.TRAIN.OPTIMIZER.BETAS[1],
        weight_decay=config.TRAIN.WEIGHT_DECAY,
        epsilon=config.TRAIN.OPTIMIZER.EPS,
        grad_clip=clip,
    )
    amp_grad_scaler = paddle.amp.GradScaler(init_loss_scaling=1024) if config.AMP else None

    last_epoch = config.TRAIN.LAST_EPOCH
    if config.MODEL.RESUME:
        state = paddle.load(config.MODEL.RESUME)
        model.set_state_dict(state["model"])
        optimizer.set_state_dict(state["optimizer"])
        last_epoch = state["epoch"]
        if amp_grad_scaler is not None:
            amp_grad_scaler.load_state_dict(state["amp_grad_scaler"])

    for epoch in range(last_epoch + 1, config.TRAIN.NUM_EPOCHS + 1):
        loss, seconds = train_one_epoch(
            dataloader=dataloader,
            model=model,
            optimizer=optimizer,
            base_lr=base_lr,
            config=config,
            epoch=epoch,
            amp_grad_scaler=amp_grad_scaler,
            logger=logger,
        )
        if rank == 0:
            logger.info("----- Epoch[%03d], Train Loss: %.4f, time: %.2f", epoch, loss, seconds)
            if epoch % config.SAVE_FREQ == 0 or epoch == config.TRAIN.NUM_EPOCHS:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                state["epoch"] = epoch
                if amp_grad_scaler is not None:
                    state["amp_grad_scaler"] = amp_grad_scaler.state_dict()
                paddle.save(state, os.path.join(config.SAVE, f"Epoch-{epoch}.pdparams"))


def main():
    config = update_config(get_config(), get_arguments())
    os.makedirs(config.SAVE, exist_ok=True)
    main_worker(config)


if __name__ == "__main__":
    main()
