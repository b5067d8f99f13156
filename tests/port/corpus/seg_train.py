"""Segmentation: `precision` and `amp_level` are parameters with defaults."""

import paddle
from paddleseg.core.val import evaluate
from paddleseg.utils import logger


def train(
    model,
    train_dataset,
    val_dataset=None,
    optimizer=None,
    save_dir="output",
    iters=10000,
    batch_size=2,
    save_interval=1000,
    num_workers=0,
    losses=None,
    precision="fp32",
    amp_level="O1",
    profiler_options=None,
    to_static_training=False,
):
    model.train()
    nranks = paddle.distributed.ParallelEnv().nranks
    local_rank = paddle.distributed.ParallelEnv().local_rank
    if precision == "fp16" and amp_level == "O2":
        model, optimizer = paddle.amp.decorate(
            models=model, optimizers=optimizer, level="O2", save_dtype="float32"
        )
    if nranks > 1:
        paddle.distributed.init_parallel_env()
        optimizer = paddle.distributed.fleet.distributed_optimizer(optimizer)
        ddp_model = paddle.distributed.fleet.distributed_model(model)
    loader = paddle.io.DataLoader(train_dataset, batch_size=batch_size, num_workers=num_workers)
    if precision == "fp16":
        logger.info("use AMP to train. AMP level = {}".format(amp_level))
        scaler = paddle.amp.GradScaler(init_loss_scaling=1024)
        if nranks > 1:
            scaler = paddle.distributed.fleet.distributed_scaler(scaler)
    iter = 0
    while iter < iters:
        for data in loader:
            iter += 1
            if iter > iters:
                break
            images, labels = data["img"], data["label"].astype("int64")
            if precision == "fp16":
                with paddle.amp.auto_cast(
                    level=amp_level,
                    enable=True,
                    custom_white_list={"elementwise_add", "batch_norm", "sync_batch_norm"},
                    custom_black_list={"bilinear_interp_v2"},
                ):
                    logits_list = ddp_model(images) if nranks > 1 else model(images)
                    loss = sum(loss_computation(logits_list, labels, losses))
                scaled = scaler.scale(loss)
                scaled.backward()
                if isinstance(optimizer, paddle.distributed.fleet.Fleet):
                    scaler.minimize(optimizer.user_defined_optimizer, scaled)
                else:
                    scaler.minimize(optimizer, scaled)
            else:
                logits_list = ddp_model(images) if nranks > 1 else model(images)
                loss = sum(loss_computation(logits_list, labels, losses))
                loss.backward()
                optimizer.step()
            model.clear_gradients()
            if (iter % save_interval == 0 or iter == iters) and val_dataset is not None:
                evaluate(model, val_dataset, precision=precision, amp_level=amp_level)
