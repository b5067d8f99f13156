import os
import random
import sys

__dir__ = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.abspath(os.path.join(__dir__, "../")))

import numpy as np
import paddle
import paddle.distributed as dist

from fleetgpt.core import EagerEngine
from fleetgpt.data import build_dataloader
from fleetgpt.models import build_module
from fleetgpt.utils import config
from fleetgpt.utils.log import advertise, logger


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    paddle.seed(seed)


def init_dist_env():
    strategy = paddle.distributed.fleet.DistributedStrategy()
    paddle.distributed.fleet.init(is_collective=True, strategy=strategy)


if __name__ == "__main__":
    args = config.parse_args()
    cfg = config.get_config(args.config, overrides=args.override, show=False)
    paddle.set_device(cfg["Global"]["device"])
    if dist.get_world_size() > 1:
        init_dist_env()
    set_seed(cfg.Global.seed)

    module = build_module(cfg)
    config.print_config(cfg)
    advertise()

    train_data_loader = build_dataloader(cfg.Data, "Train", cfg.Global)
    eval_data_loader = build_dataloader(cfg.Data, "Eval", cfg.Global)

    cfg.Optimizer.lr.update({"total_steps": cfg.Engine.max_steps})
    engine = EagerEngine(configs=cfg, module=module)
    if cfg.Engine.save_load.ckpt_dir is not None:
        engine.load()
        logger.info("goes on from %s", cfg.Engine.save_load.ckpt_dir)

    engine.fit(
        train_data_loader=train_data_loader,
        valid_data_loader=eval_data_loader,
        epoch=cfg.Engine.num_train_epochs,
    )
