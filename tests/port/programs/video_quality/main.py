import argparse
import random

import numpy as np
import paddle

from quality.utils.config import get_config
from quality.utils.logger import get_logger, setup_logger
from tasks.test import test_model
from tasks.train import train_model


def parse_args():
    parser = argparse.ArgumentParser("Quality assessment of videos")
    parser.add_argument(
        "-c", "--config", type=str, default="configs/example.yaml", help="config file path"
    )
    parser.add_argument("-o", "--override", action="append", default=[], help="options to override")
    parser.add_argument("--test", action="store_true", help="whether to test a model")
    parser.add_argument("--train_dali", action="store_true", help="whether to use dali")
    parser.add_argument("--multigrid", action="store_true", help="whether to use multigrid training")
    parser.add_argument("-w", "--weights", type=str, help="weights for finetuning or testing")
    parser.add_argument("--amp", action="store_true", help="whether to open amp training.")
    parser.add_argument("--validate", action="store_true", help="whether to evaluate the checkpoint")
    parser.add_argument("--seed", type=int, default=1234, help="fixed all random seeds")
    parser.add_argument("--max_iters", type=int, default=None, help="iterations of a smoke test")
    args = parser.parse_args()
    return args


def main():
    args = parse_args()
    cfg = get_config(args.config, overrides=args.override, show=not args.test)
    random.seed(args.seed)
    np.random.seed(args.seed)
    paddle.seed(args.seed)
    setup_logger(cfg.get("output_dir", "./output"))
    get_logger("quality").info("seed %d", args.seed)

    if args.test:
        test_model(cfg, args.weights)
    elif args.multigrid:
        raise NotImplementedError("multigrid training is of the older releases")
    else:
        train_model(
            cfg,
            weights=args.weights,
            validate=args.validate,
            amp=args.amp,
            max_iters=args.max_iters,
        )


if __name__ == "__main__":
    main()
