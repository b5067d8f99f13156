"""Text recognition: settings of `config["Global"]`, with a default for each."""

import os

import paddle
import paddle.distributed as dist
from ppocr.data import build_dataloader
from ppocr.modeling.architectures import build_model
from ppocr.optimizer import build_optimizer


def main(config, device, logger):
    if config["Global"]["distributed"]:
        dist.init_parallel_env()
    train_dataloader = build_dataloader(config, "Train", device, logger)
    model = build_model(config["Architecture"])
    use_sync_bn = config["Global"].get("use_sync_bn", False)
    if use_sync_bn:
        model = paddle.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    optimizer, lr_scheduler = build_optimizer(
        config["Optimizer"], epochs=config["Global"]["epoch_num"], model=model
    )
    use_amp = config["Global"].get("use_amp", False)
    amp_level = config["Global"].get("amp_level", "O2")
    amp_dtype = config["Global"].get("amp_dtype", "float16")
    amp_custom_black_list = config["Global"].get("amp_custom_black_list", [])
    if use_amp:
        flags = {"FLAGS_max_inplace_grad_add": 8}
        if paddle.is_compiled_with_cuda():
            flags.update({"FLAGS_cudnn_batchnorm_spatial_persistent": 1})
        paddle.set_flags(flags)
        scale_loss = config["Global"].get("scale_loss", 1.0)
        use_dynamic_loss_scaling = config["Global"].get("use_dynamic_loss_scaling", False)
        scaler = paddle.amp.GradScaler(
            init_loss_scaling=scale_loss, use_dynamic_loss_scaling=use_dynamic_loss_scaling
        )
        if amp_level == "O2":
            model, optimizer = paddle.amp.decorate(
                models=model,
                optimizers=optimizer,
                level=amp_level,
                master_weight=True,
                dtype=amp_dtype,
            )
    else:
        scaler = None
    if config["Global"]["distributed"]:
        model = paddle.DataParallel(model)
    train(
        config,
        train_dataloader,
        model,
        build_loss(config["Loss"]),
        optimizer,
        lr_scheduler,
        scaler,
        amp_level,
        amp_custom_black_list,
        amp_dtype,
    )


def train(
    config,
    train_dataloader,
    model,
    loss_class,
    optimizer,
    lr_scheduler,
    scaler=None,
    amp_level="O2",
    amp_custom_black_list=[],
    amp_dtype="float16",
):
    cal_metric_during_train = config["Global"].get("cal_metric_during_train", False)
    model_type = config["Architecture"]["model_type"]
    algorithm = config["Architecture"]["algorithm"]
    global_step = 0
    for epoch in range(config["Global"]["epoch_num"]):
        for idx, batch in enumerate(train_dataloader):
            images = batch[0]
            if scaler:
                with paddle.amp.auto_cast(
                    level=amp_level, custom_black_list=amp_custom_black_list, dtype=amp_dtype
                ):
                    if model_type == "table" or algorithm in ["SAR", "NRTR"]:
                        preds = model(images, data=batch[1:])
                    else:
                        preds = model(images)
                preds = to_float32(preds)
                loss = loss_class(preds, batch)
                avg_loss = loss["loss"]
                scaled_avg_loss = scaler.scale(avg_loss)
                scaled_avg_loss.backward()
                scaler.minimize(optimizer, scaled_avg_loss)
            else:
                preds = model(images)
                loss = loss_class(preds, batch)
                avg_loss = loss["loss"]
                avg_loss.backward()
                optimizer.step()
            optimizer.clear_grad()
            global_step += 1
            lr_scheduler.step()
            if dist.get_rank() == 0 and global_step % 2000 == 0:
                evaluate(model)


if __name__ == "__main__":
    config, device, logger, vdl_writer = program.preprocess(is_train=True)
    main(config, device, logger)
