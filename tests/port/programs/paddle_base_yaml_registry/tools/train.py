"""python tools/train.py --config configs/petr/petr_amp.yml --learning_rate 1e-4"""

import argparse
import os
import sys

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "..")))

import paddle

from det3d import detector  # noqa: F401  # registers its classes
from det3d.config import Config
from det3d.trainer import Trainer


def parse_args():
    parser = argparse.ArgumentParser(description="Model training")
    parser.add_argument("--config", dest="cfg", required=True, help="The config file.")
    parser.add_argument("--batch_size", type=int, default=None)
    parser.add_argument("--iters", type=int, default=None)
    parser.add_argument("--learning_rate", type=float, default=None)
    parser.add_argument("--save_dir", default="output")
    parser.add_argument("--seed", type=int, default=1024)
    return parser.parse_args()


def main(args):
    paddle.seed(args.seed)
    cfg = Config(path=args.cfg)
    cfg.update(batch_size=args.batch_size, iters=args.iters, learning_rate=args.learning_rate)
    settings = cfg.to_dict()
    trainer = Trainer(
        model=cfg.model,
        optimizer=cfg.optimizer,
        iters=settings["iters"],
        batch_size=settings["batch_size"],
        amp_cfg=settings.get("amp_cfg"),
        save_dir=args.save_dir,
    )
    trainer.train()


if __name__ == "__main__":
    main(parse_args())
