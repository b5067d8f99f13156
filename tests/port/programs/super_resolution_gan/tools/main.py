"""python tools/main.py -c configs/esrgan_x4_div2k.yaml --amp"""

import argparse
import os
import random
import sys
import time

cur_path = os.path.abspath(os.path.dirname(__file__))
sys.path.append(os.path.split(cur_path)[0])

import numpy as np
import paddle

from srgan.config import get_config
from srgan.trainer import Trainer


def parse_args():
    parser = argparse.ArgumentParser(description="super resolution")
    parser.add_argument("-c", "--config-file", metavar="FILE", help="config file path")
    parser.add_argument("--resume", type=str, default=None, help="checkpoint to go on from")
    parser.add_argument("--evaluate-only", action="store_true", default=False, help="no training")
    parser.add_argument("-o", "--opt", nargs="+", help="set configuration options")
    parser.add_argument("--seed", type=int, default=None, help="fix random numbers by setting seed")
    # add for amp training
    parser.add_argument("--amp", action="store_true", default=False, help="whether to enable amp training")
    parser.add_argument("--amp_level", type=str, default="O1", choices=["O1", "O2"],
                        help="level of amp training; O2 represent pure fp16")
    return parser.parse_args()


def setup(args, cfg):
    cfg.is_train = not args.evaluate_only
    cfg.amp = args.amp
    cfg.amp_level = args.amp_level
    cfg.timestamp = time.strftime("-%Y-%m-%d-%H-%M", time.localtime())
    cfg.output_dir = os.path.join(cfg.output_dir, str(cfg.model.name) + cfg.timestamp)
    if args.seed:
        paddle.seed(args.seed)
        random.seed(args.seed)
        np.random.seed(args.seed)
    paddle.set_device("gpu" if paddle.is_compiled_with_cuda() else "cpu")


def main(args, cfg):
    setup(args, cfg)
    trainer = Trainer(cfg)
    if args.resume:
        trainer.resume(args.resume)
    if args.evaluate_only:
        trainer.test()
        return
    try:
        trainer.train()
    except KeyboardInterrupt:
        trainer.save(trainer.current_iter)


if __name__ == "__main__":
    args = parse_args()
    cfg = get_config(args.config_file, args.opt)
    main(args, cfg)
