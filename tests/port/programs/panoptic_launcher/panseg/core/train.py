import os
import time

import paddle
from paddle.io import DataLoader, DistributedBatchSampler

from panseg.utils import logger


def train(
    launcher,
    train_dataset,
    val_dataset=None,
    save_dir="output",
    iters=10000,
    batch_size=2,
    resume_model=None,
    save_interval=1000,
    log_iters=10,
    num_workers=0,
):
    runner = launcher.runner
    runner.model.train()
    start_iter = 0
    if resume_model is not None:
        state = paddle.load(os.path.join(resume_model, "model.pdparams"))
        runner.model.set_state_dict(state)
        start_iter = int(os.path.basename(resume_model).rpartition("_")[2])

    batch_sampler = DistributedBatchSampler(
        train_dataset, batch_size=batch_size, shuffle=True, drop_last=True
    )
    loader = DataLoader(
        train_dataset,
        batch_sampler=batch_sampler,
        num_workers=num_workers,
        collate_fn=getattr(train_dataset, "collate", None),
    )
    cur_iter = start_iter
    total = {}
    start = time.time()
    while cur_iter < iters:
        for data in loader:
            cur_iter += 1
            if cur_iter > iters:
                break
            losses = launcher.train_step(data)
            for name, value in losses.items():
                total[name] = total.get(name, 0.0) + value
            learning_rate = runner.optimizer.get_lr()
            if isinstance(runner.optimizer._learning_rate, paddle.optimizer.lr.LRScheduler):
                runner.optimizer._learning_rate.step()
            if cur_iter % log_iters == 0 and paddle.distributed.get_rank() == 0:
                cost = (time.time() - start) / log_iters
                means = {name: value / log_iters for name, value in total.items()}
                logger.info("iter %d/%d lr %f %s %.3fs", cur_iter, iters, learning_rate, means, cost)
                total, start = {}, time.time()
            if cur_iter % save_interval == 0 or cur_iter == iters:
                folder = os.path.join(save_dir, "iter_{}".format(cur_iter))
                os.makedirs(folder, exist_ok=True)
                paddle.save(runner.model.state_dict(), os.path.join(folder, "model.pdparams"))
                if val_dataset is not None:
                    logger.info("quality %.4f", evaluate(launcher, val_dataset))
                    runner.model.train()


def evaluate(launcher, dataset):
    launcher.runner.model.eval()
    hits = total = 0
    for data in DataLoader(dataset, batch_size=1):
        outputs = launcher.infer_step(data)
        predicted = outputs["masks"].argmax(1)
        hits += int((predicted == data["label"]).sum())
        total += int(data["label"].size)
    return hits / max(total, 1)
