"""python tools/train.py -c configs/mocov3_deit_small.yaml -o Global.epochs=100"""

import argparse
import os
import sys

sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..")))

import paddle

paddle.disable_static()

from selfsup.core import get_config
from selfsup.engine import Engine


def parse_args():
    parser = argparse.ArgumentParser("self-supervised training script")
    parser.add_argument("-c", "--config", type=str, default="configs/config.yaml", help="config file path")
    parser.add_argument("-o", "--override", action="append", default=[], help="config options to be overridden")
    return parser.parse_args()


def main():
    args = parse_args()
    config = get_config(args.config, overrides=args.override)
    engine = Engine(config, mode="train")
    engine.train()


if __name__ == "__main__":
    main()
