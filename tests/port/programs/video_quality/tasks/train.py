import os.path as osp
import time

import paddle
import paddle.distributed as dist

from quality.loader import build_dataloader
from quality.modeling.recognizer import build_model
from quality.solver import build_lr, build_optimizer
from quality.utils.logger import get_logger
from quality.utils.record import build_record, log_batch, log_epoch


def train_model(cfg, weights=None, parallel=True, validate=True, amp=False, max_iters=None):
    """Train, and evaluate after each epoch.

    Args:
        cfg (dict): configuration.
        weights (str): weights path for finetuning.
        parallel (bool): whether multi-cards training.
        validate (bool): whether to do evaluation.
        amp (bool): whether to use automatic mixed precision.
    """
    logger = get_logger("quality")
    batch_size = cfg.DATASET.get("batch_size", 8)
    valid_batch_size = cfg.DATASET.get("valid_batch_size", batch_size)

    use_gradient_accumulation = cfg.get("GRADIENT_ACCUMULATION", None)
    if use_gradient_accumulation and dist.get_world_size() >= 1:
        global_batch_size = cfg.GRADIENT_ACCUMULATION.get("global_batch_size", None)
        assert isinstance(global_batch_size, int), "global_batch_size must be int"
        cur_global_batch_size = batch_size * dist.get_world_size()
        assert global_batch_size % cur_global_batch_size == 0
        cfg.GRADIENT_ACCUMULATION["num_iters"] = global_batch_size // cur_global_batch_size

    if dist.get_world_size() > 1:
        dist.init_parallel_env()
    places = paddle.set_device("gpu")

    # 1. Construct model
    model = build_model(cfg.MODEL)
    if parallel and dist.get_world_size() > 1:
        model = paddle.DataParallel(model)

    # 2. Construct dataset and dataloader
    train_loader = build_dataloader(cfg.DATASET.train, batch_size, places, shuffle=True)
    if validate:
        valid_loader = build_dataloader(cfg.DATASET.valid, valid_batch_size, places, shuffle=False)

    # 3. Construct solver
    lr = build_lr(cfg.OPTIMIZER.learning_rate, len(train_loader))
    optimizer = build_optimizer(cfg.OPTIMIZER, lr, parameter_list=model.parameters())
    if weights:
        model.set_state_dict(paddle.load(weights))

    # 4. Train Model
    ###AMP###
    if amp:
        scaler = paddle.amp.GradScaler(
            init_loss_scaling=2.0**10, incr_every_n_steps=2000, decr_every_n_nan_or_inf=1
        )

    best = 0.0
    for epoch in range(0, cfg.epochs):
        model.train()
        record_list = build_record(cfg.MODEL)
        tic = time.time()
        for i, data in enumerate(train_loader):
            if max_iters is not None and i >= max_iters:
                break
            record_list["reader_time"].update(time.time() - tic)

            # 4.1 forward
            ###AMP###
            if amp:
                with paddle.amp.auto_cast(custom_black_list={"temporal_shift", "reduce_mean"}):
                    outputs = model(data, mode="train")

                avg_loss = outputs["loss"]
                scaled = scaler.scale(avg_loss)
                scaled.backward()
                # keep prior to 2.0 design
                scaler.minimize(optimizer, scaled)
                optimizer.clear_grad()

            else:
                outputs = model(data, mode="train")

                # 4.2 backward
                if use_gradient_accumulation and i == 0:  # Use gradient accumulation strategy
                    optimizer.clear_grad()
                avg_loss = outputs["loss"]
                avg_loss.backward()

                # 4.3 minimize
                if use_gradient_accumulation:  # Use gradient accumulation strategy
                    if (i + 1) % cfg.GRADIENT_ACCUMULATION.num_iters == 0:
                        for p in model.parameters():
                            p.grad.set_value(p.grad / cfg.GRADIENT_ACCUMULATION.num_iters)
                        optimizer.step()
                        optimizer.clear_grad()
                else:  # Common case
                    optimizer.step()
                    optimizer.clear_grad()

            # log record
            record_list["lr"].update(optimizer.get_lr(), batch_size)
            for name, value in outputs.items():
                record_list[name].update(float(value), batch_size)
            record_list["batch_time"].update(time.time() - tic)
            tic = time.time()
            if i % cfg.get("log_interval", 10) == 0:
                log_batch(record_list, i, epoch + 1, cfg.epochs, "train")

            # learning rate iter step
            if cfg.OPTIMIZER.learning_rate.get("iter_step"):
                lr.step()

        # learning rate epoch step
        if not cfg.OPTIMIZER.learning_rate.get("iter_step"):
            lr.step()
        log_epoch(record_list, epoch + 1, "train")

        # 5. Validation
        if validate and (epoch % cfg.get("val_interval", 1) == 0 or epoch == cfg.epochs - 1):
            with paddle.no_grad():
                plcc = evaluate(model, valid_loader)
            if plcc > best:
                best = plcc
                save(model, optimizer, cfg, "best")
                logger.info("Already save the best model (correlation) %.4f", best)
        if epoch % cfg.get("save_interval", 1) == 0:
            save(model, optimizer, cfg, "epoch_%05d" % (epoch + 1))
    logger.info("training %s finished", cfg.model_name)


def evaluate(model, loader):
    """The correlation of predicted and given qualities."""
    model.eval()
    predicted, given = [], []
    for data in loader:
        outputs = model(data, mode="valid")
        predicted.append(outputs["quality"])
        given.append(data[1].astype("float32"))
    predicted, given = paddle.concat(predicted).flatten(), paddle.concat(given).flatten()
    predicted, given = predicted - predicted.mean(), given - given.mean()
    spread = predicted.square().sum().sqrt() * given.square().sum().sqrt()
    return float((predicted * given).sum() / (spread + 1e-8))


def save(model, optimizer, cfg, name):
    prefix = osp.join(cfg.get("output_dir", "./output"), cfg.model_name + "_" + name)
    paddle.save(optimizer.state_dict(), prefix + ".pdopt")
    paddle.save(model.state_dict(), prefix + ".pdparams")
