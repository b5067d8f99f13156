import os
import sys

__dir__ = os.path.dirname(os.path.abspath(__file__))
sys.path.append(__dir__)
sys.path.insert(0, os.path.abspath(os.path.join(__dir__, "..")))

import paddle
import paddle.distributed as dist

import tools.program as program
from ocr.data import build_dataloader
from ocr.losses import build_loss
from ocr.modeling import build_model
from ocr.optimizer import build_optimizer

dist.get_world_size()


def main(config, device, logger):
    if config["Global"]["distributed"]:
        dist.init_parallel_env()

    train_dataloader = build_dataloader(config, "Train", device, logger)
    if len(train_dataloader) == 0:
        logger.error("No images in the train dataset, check label_file and data_dir.")
        return
    valid_dataloader = build_dataloader(config, "Eval", device, logger) if config["Eval"] else None

    model = build_model(config["Architecture"])
    loss_class = build_loss(config["Loss"])
    optimizer, lr_scheduler = build_optimizer(
        config["Optimizer"],
        epochs=config["Global"]["epoch_num"],
        step_each_epoch=len(train_dataloader),
        model=model,
    )
    logger.info("train dataloader has {} iters".format(len(train_dataloader)))

    use_amp = config["Global"].get("use_amp", False)
    amp_level = config["Global"].get("amp_level", "O2")
    amp_dtype = config["Global"].get("amp_dtype", "float16")
    amp_custom_black_list = config["Global"].get("amp_custom_black_list", [])
    amp_custom_white_list = config["Global"].get("amp_custom_white_list", [])
    if use_amp:
        flags = {}
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
    program.train(
        config,
        train_dataloader,
        valid_dataloader,
        device,
        model,
        loss_class,
        optimizer,
        lr_scheduler,
        logger,
        scaler,
        amp_level,
        amp_custom_black_list,
        amp_custom_white_list,
        amp_dtype,
    )


if __name__ == "__main__":
    config, device, logger = program.preprocess(is_train=True)
    paddle.seed(config["Global"]["seed"] if "seed" in config["Global"] else 1024)
    main(config, device, logger)
