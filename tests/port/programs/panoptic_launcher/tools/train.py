import argparse
import os
import random

import numpy as np
import paddle

from panseg.core.config import Config, make_default_config
from panseg.core.launcher import AMPLauncher
from panseg.core.runner import PanSegRunner
from panseg.core.train import train
from panseg.models import build_loss, build_model
from panseg.utils import build_dataset, logger


def parse_args():
    parser = argparse.ArgumentParser(description="Model training")
    parser.add_argument("--config", dest="cfg", help="The config file.", default=None, type=str)
    parser.add_argument("--iters", help="Iterations in training.", type=int, default=None)
    parser.add_argument("--batch_size", help="Mini batch size of one gpu.", type=int, default=None)
    parser.add_argument("--learning_rate", help="Learning rate.", type=float, default=None)
    parser.add_argument("--save_interval", help="How many iters to save a model.", default=1000, type=int)
    parser.add_argument("--resume_model", help="The path of the model to resume.", default=None)
    parser.add_argument("--save_dir", help="The directory for saving snapshots.", default="./output")
    parser.add_argument("--num_workers", help="Workers of the data loader.", type=int, default=0)
    parser.add_argument("--do_eval", help="Whether to do evaluation in training.", action="store_true")
    parser.add_argument("--log_iters", help="Display logging information at every iters", default=10, type=int)
    parser.add_argument("--seed", help="Set the random seed in training.", default=None, type=int)
    parser.add_argument(
        "--precision",
        default="fp32",
        type=str,
        choices=["fp32", "fp16"],
        help="Use AMP (auto mixed precision) if precision='fp16', normal training if 'fp32'.",
    )
    parser.add_argument(
        "--amp_level",
        default="O1",
        type=str,
        choices=["O1", "O2"],
        help="Auto mixed precision level, O1 or O2: an operator's list, or a whole model of float16.",
    )
    parser.add_argument("--opts", help="Update the key-value pairs of all options.", nargs="+")
    return parser.parse_args()


def main(args):
    if args.seed is not None:
        paddle.seed(args.seed)
        np.random.seed(args.seed)
        random.seed(args.seed)
    place = "gpu" if paddle.is_compiled_with_cuda() else "cpu"
    paddle.set_device(place)
    if not args.cfg:
        raise RuntimeError("No configuration file specified.")
    cfg = Config(
        args.cfg,
        make_default_config(),
        learning_rate=args.learning_rate,
        iters=args.iters,
        batch_size=args.batch_size,
        opts=args.opts,
    )
    train_dataset = build_dataset(cfg.dic["train_dataset"])
    val_dataset = build_dataset(cfg.dic["val_dataset"]) if args.do_eval else None
    model = build_model(cfg.dic["model"])
    if paddle.distributed.get_world_size() > 1:
        model = paddle.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    optimizer = cfg.build_optimizer(model)
    logger.info("training of %s with %s", type(model).__name__, args.precision)

    runner = PanSegRunner(model=model, criterion=build_loss(cfg.dic["loss"]))
    runner.bind(optimizer=optimizer)
    launcher = AMPLauncher(runner=runner, precision=args.precision, amp_level=args.amp_level)
    os.makedirs(args.save_dir, exist_ok=True)
    train(
        launcher,
        train_dataset,
        val_dataset=val_dataset,
        save_dir=args.save_dir,
        iters=cfg.dic["iters"],
        batch_size=cfg.dic["batch_size"],
        resume_model=args.resume_model,
        save_interval=args.save_interval,
        log_iters=args.log_iters,
        num_workers=args.num_workers,
    )


if __name__ == "__main__":
    main(parse_args())
