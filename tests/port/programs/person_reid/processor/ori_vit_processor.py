import logging
import os
import time

import torch
import torch.nn as nn
from torch.cuda import amp
from torch.utils.tensorboard import SummaryWriter


class AverageMeter(object):
    def __init__(self):
        self.reset()

    def reset(self):
        self.sum, self.count, self.avg = 0.0, 0, 0.0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


def do_train(cfg, model, train_loader, val_loader, optimizer, scheduler, loss_fn, local_rank):
    log_period = cfg.SOLVER.LOG_PERIOD
    checkpoint_period = cfg.SOLVER.CHECKPOINT_PERIOD
    device = "cuda"
    epochs = cfg.SOLVER.MAX_EPOCHS

    logger = logging.getLogger("reid.train")
    logger.info("start training")
    log_path = os.path.join(cfg.LOG_ROOT, cfg.LOG_NAME)
    tbWriter = SummaryWriter(log_path)
    if device:
        model.to(local_rank)
        if torch.cuda.device_count() > 1 and cfg.MODEL.DIST_TRAIN:
            model = nn.parallel.DistributedDataParallel(
                model, device_ids=[local_rank], find_unused_parameters=True
            )

    loss_meter, acc_meter = AverageMeter(), AverageMeter()
    scaler = amp.GradScaler(init_scale=512)
    best = 0.0
    for epoch in range(1, epochs + 1):
        start_time = time.time()
        loss_meter.reset()
        acc_meter.reset()
        scheduler.step(epoch)
        model.train()

        for n_iter, informations in enumerate(train_loader):
            img = informations["images"].to(device)
            target = informations["targets"].to(device)
            optimizer.zero_grad()
            with amp.autocast(enabled=True):
                score, feat = model(img)
                loss = loss_fn(score, feat, target)

            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

            acc = (score.max(1)[1] == target).float().mean()
            loss_meter.update(loss.item(), img.shape[0])
            acc_meter.update(acc.item(), 1)
            torch.cuda.synchronize()
            if (n_iter + 1) % log_period == 0:
                logger.info(
                    "Epoch[{}] Iteration[{}/{}] Loss: {:.3f}, Acc: {:.3f}, Base Lr: {:.2e}".format(
                        epoch, n_iter + 1, len(train_loader), loss_meter.avg, acc_meter.avg,
                        optimizer.param_groups[0]["lr"],
                    )
                )  # fmt: skip
                tbWriter.add_scalar("train/loss", loss_meter.avg, n_iter + epoch * len(train_loader))

        speed = (time.time() - start_time) / (n_iter + 1)
        logger.info("Epoch {} done. Time per batch: {:.3f}[s]".format(epoch, speed))
        if epoch % checkpoint_period == 0:
            torch.save(model.state_dict(), os.path.join(log_path, "{}.pth".format(epoch)))
        rank_1 = do_inference(model, val_loader, device)
        logger.info("Rank-1 {:.1%}".format(rank_1))
        if rank_1 > best:
            best = rank_1
            torch.save(model.state_dict(), os.path.join(log_path, "best.pth"))


@torch.no_grad()
def do_inference(model, val_loader, device):
    model.eval()
    features, people = [], []
    for informations in val_loader:
        features.append(model(informations["images"].to(device)))
        people.append(informations["targets"].to(device))
    features, people = torch.cat(features), torch.cat(people)
    features = nn.functional.normalize(features)
    nearest = (features @ features.T).fill_diagonal_(-1.0).argmax(1)
    return (people[nearest] == people).float().mean().item()
