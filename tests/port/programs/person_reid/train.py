import argparse
import logging
import os
import random

import numpy as np
import torch
import torch.utils.data

from config import cfg
from model import ReIDViT, make_loss
from processor.ori_vit_processor import do_train


class People(torch.utils.data.Dataset):
    def __init__(self, cfg, split):
        path = os.path.join(cfg.DATASETS.ROOT_DIR, cfg.DATASETS.TRAIN, split + ".npz")
        arrays = np.load(path)
        self.images, self.targets = arrays["images"], arrays["targets"]
        self.mean = torch.tensor(cfg.INPUT.PIXEL_MEAN).view(3, 1, 1)
        self.std = torch.tensor(cfg.INPUT.PIXEL_STD).view(3, 1, 1)

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        image = torch.from_numpy(self.images[index]).float() / 255.0
        return {"images": (image - self.mean) / self.std, "targets": int(self.targets[index])}


def set_seed(seed):
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    np.random.seed(seed)
    random.seed(seed)
    torch.backends.cudnn.benchmark = True


class WarmupCosine(object):
    def __init__(self, optimizer, epochs, warmup=5):
        self.optimizer, self.epochs, self.warmup = optimizer, epochs, warmup
        self.base = [group["lr"] for group in optimizer.param_groups]

    def step(self, epoch):
        rising = min(epoch / self.warmup, 1.0)
        falling = 0.5 * (1 + np.cos(np.pi * epoch / self.epochs))
        for group, lr in zip(self.optimizer.param_groups, self.base):
            group["lr"] = lr * rising * falling


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="ReID Training")
    parser.add_argument("--config_file", default="", help="path to config file", type=str)
    parser.add_argument("opts", help="Modify config options", default=None, nargs=argparse.REMAINDER)
    parser.add_argument("--local_rank", default=0, type=int)
    args = parser.parse_args()
    if args.config_file != "":
        cfg.merge_from_file(args.config_file)
    cfg.merge_from_list(args.opts)
    cfg.freeze()

    set_seed(cfg.SOLVER.SEED)
    logging.basicConfig(level=logging.INFO)
    train_set, val_set = People(cfg, "train"), People(cfg, "val")
    train_loader = torch.utils.data.DataLoader(
        train_set,
        batch_size=cfg.SOLVER.IMS_PER_BATCH,
        shuffle=True,
        num_workers=cfg.DATALOADER.NUM_WORKERS,
        drop_last=True,
    )
    val_loader = torch.utils.data.DataLoader(val_set, batch_size=cfg.SOLVER.IMS_PER_BATCH)
    model = ReIDViT(int(train_set.targets.max()) + 1, cfg)
    optimizer = getattr(torch.optim, cfg.SOLVER.OPTIMIZER_NAME)(
        [p for p in model.parameters() if p.requires_grad],
        lr=cfg.SOLVER.BASE_LR,
        momentum=cfg.SOLVER.MOMENTUM,
        weight_decay=cfg.SOLVER.WEIGHT_DECAY,
    )
    scheduler = WarmupCosine(optimizer, cfg.SOLVER.MAX_EPOCHS)
    do_train(
        cfg, model, train_loader, val_loader, optimizer, scheduler, make_loss(cfg), args.local_rank
    )
