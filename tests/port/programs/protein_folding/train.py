"""Training of the folding model.

python -m paddle.distributed.launch train.py --precision bf16 --data_config configs/data.json
"""

import argparse
import json
import logging
import os
import random

import numpy as np
import paddle
import paddle.distributed as dist
import paddle.nn as nn
from paddle.distributed import fleet
from tensorboardX import SummaryWriter

from data import build_loader, forever, load_data_config
from fold.config import model_config
from fold.model import RunModel
from utils.amp import get_custom_amp_list
from utils.metric import ResultsCollect, TrainLogger
from utils.param_ema import ParamEMA

MAX_EVAL_SIZE = int(os.environ.get("MAX_EVAL_SIZE", 1400))


def str2bool(v):
    if v.lower() in ("yes", "true", "t", "y", "1"):
        return True
    if v.lower() in ("no", "false", "f", "n", "0"):
        return False
    raise argparse.ArgumentTypeError("Boolean value expected.")


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--distributed", action="store_true", default=False)
    parser.add_argument("--batch_size", type=int, default=1)
    parser.add_argument("--num_workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=2022)
    parser.add_argument("--start_step", type=int, default=0)
    parser.add_argument("--train_step", type=int, default=500)
    parser.add_argument("--log_step", type=int, default=20)
    parser.add_argument("--eval_step", type=int, default=200)
    parser.add_argument("--save_step", type=int, default=200)
    parser.add_argument("--model_name", type=str, default="initial")
    parser.add_argument("--init_model", type=str, default="")
    parser.add_argument("--train_config", type=str, default="")
    parser.add_argument("--data_config", type=str, default="configs/data.json")
    parser.add_argument("--model_dir", type=str, default="./output")
    parser.add_argument("--log_dir", type=str, default="./log")
    parser.add_argument("--only_test", action="store_true", default=False)
    parser.add_argument("--grad_clip", type=float, default=0.1)
    parser.add_argument("--ema", type=str2bool, default=True)
    parser.add_argument(
        "--precision", type=str, choices=["fp32", "bf16"], default="fp32", help="fp32 or bf16"
    )
    parser.add_argument("--amp_level", type=str, default="O1", help="O1 or O2, for bf16")
    return parser.parse_args()


def init_seed(seed):
    paddle.seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def init_distributed_env(args):
    if args.distributed:
        strategy = fleet.DistributedStrategy()
        fleet.init(is_collective=True, strategy=strategy)
    return dist.get_rank(), dist.get_world_size()


def get_train_config(path):
    config = {
        "lr": {"learning_rate": 1e-3, "warmup_steps": 1000, "decay_steps": 50000, "decay_rate": 0.95},
        "max_recycling_iters": 3,
        "scale_by_length": True,
        "ema_decay": 0.999,
    }
    if path:
        with open(path) as f:
            config.update(json.load(f))
    return config


def get_optimizer(args, config, model):
    lr = config["lr"]
    schedule = paddle.optimizer.lr.StepDecay(
        lr["learning_rate"], step_size=lr["decay_steps"], gamma=lr["decay_rate"]
    )
    schedule = paddle.optimizer.lr.LinearWarmup(
        schedule, lr["warmup_steps"], start_lr=1e-5, end_lr=lr["learning_rate"]
    )
    grad_clip = nn.ClipGradByGlobalNorm(args.grad_clip)
    optimizer = paddle.optimizer.Adam(
        learning_rate=schedule,
        epsilon=1e-06,
        grad_clip=grad_clip,
        parameters=model.parameters(),
    )
    return optimizer, schedule


def losses_of(results, loss):
    values = {name: value["loss"] for name, value in results.items() if "loss" in value}
    return {**values, "loss": loss}


@paddle.no_grad()
def evaluate(args, cur_step, model, loader, ema, summary):
    model.eval()
    if ema is not None:
        ema.apply()
    collect = ResultsCollect()
    black_list, white_list = get_custom_amp_list()
    for batch in loader:
        if float(batch["seq_mask"].sum()) > MAX_EVAL_SIZE:
            continue
        if args.precision == "bf16":
            with paddle.amp.auto_cast(
                enable=True,
                custom_white_list=white_list,
                custom_black_list=black_list,
                level=args.amp_level,
                dtype="bfloat16",
            ):
                results, loss = model(batch, compute_loss=True)
        else:
            results, loss = model(batch, compute_loss=True)
        collect.add(batch, losses_of(results, loss))
    if ema is not None:
        ema.restore()
    model.train()
    for name, value in collect.get_result().items():
        summary.add_scalar("eval/" + name, value, cur_step)
        logging.info("eval %d %s %.5f", cur_step, name, value)


def save_model(args, cur_step, model, optimizer, ema):
    folder = os.path.join(args.model_dir, "step_{}".format(cur_step))
    os.makedirs(folder, exist_ok=True)
    paddle.save(model.state_dict(), os.path.join(folder, "model.pdparams"))
    paddle.save(optimizer.state_dict(), os.path.join(folder, "optimizer.pdopt"))
    if ema is not None:
        paddle.save(ema.shadow, os.path.join(folder, "ema.pdparams"))


def train(args, cur_step, model, batch, optimizer, schedule, collect, logger):
    """One step by one batch."""
    black_list, white_list = get_custom_amp_list()

    logger.start("forward")
    if args.precision == "bf16":
        with paddle.amp.auto_cast(
            enable=True,
            custom_white_list=white_list,
            custom_black_list=black_list,
            level=args.amp_level,
            dtype="bfloat16",
        ):
            results, loss = model(batch, compute_loss=True)
    else:
        results, loss = model(batch, compute_loss=True)
    logger.end("forward")

    logger.start("backward")
    loss.backward()
    logger.end("backward")

    logger.start("optimizer")
    optimizer.step()
    schedule.step()
    optimizer.clear_grad()
    logger.end("optimizer")

    collect.add(batch, losses_of(results, loss))
    return loss


def main(args):
    rank, world_size = init_distributed_env(args)
    init_seed(args.seed + rank)
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING)
    config = get_train_config(args.train_config)
    sizes = model_config(args.model_name)
    data_config = load_data_config(args.data_config)

    model = RunModel(config, sizes)
    if args.init_model:
        model.set_state_dict(paddle.load(args.init_model))
    optimizer, schedule = get_optimizer(args, config, model)
    ema = ParamEMA(model, config["ema_decay"]) if args.ema else None
    if args.distributed:
        optimizer = fleet.distributed_optimizer(optimizer)
        model = fleet.distributed_model(model)
    logging.info("%d parameters", sum(int(p.size) for p in model.parameters()))

    summary = SummaryWriter(args.log_dir)
    valid_loader = build_loader(args, sizes, data_config["eval"], False)
    if args.only_test:
        evaluate(args, args.start_step, model, valid_loader, ema, summary)
        return
    batches = forever(build_loader(args, sizes, data_config["train"], True))
    logger, collect = TrainLogger(), ResultsCollect()
    model.train()
    for cur_step in range(args.start_step + 1, args.train_step + 1):
        logger.start("data")
        batch = next(batches)
        logger.end("data")
        train(args, cur_step, model, batch, optimizer, schedule, collect, logger)
        if ema is not None:
            ema.update()
        if cur_step % args.log_step == 0:
            results = collect.get_result()
            logger.print_loss(cur_step, results)
            for name, value in results.items():
                summary.add_scalar("train/" + name, value, cur_step)
            summary.add_scalar("lr", optimizer.get_lr(), cur_step)
            collect = ResultsCollect()
        if cur_step % args.eval_step == 0:
            evaluate(args, cur_step, model, valid_loader, ema, summary)
        if cur_step % args.save_step == 0 and rank == 0:
            save_model(args, cur_step, model, optimizer, ema)


if __name__ == "__main__":
    main(parse_args())
