import os
import sys

# add the repository to sys.path
parent_path = os.path.abspath(os.path.join(__file__, *([".."] * 2)))
sys.path.insert(0, parent_path)

import paddle

from det.core.workspace import load_config, merge_config
from det.engine import Trainer
from det.utils.cli import ArgsParser, merge_args


def parse_args():
    parser = ArgsParser()
    parser.add_argument("--eval", action="store_true", default=False)
    parser.add_argument("-r", "--resume", default=None, help="weights path for resume")
    parser.add_argument("--slim_config", default=None, type=str)
    parser.add_argument("--amp", action="store_true", default=False)
    parser.add_argument("--fleet", action="store_true", default=False)
    return parser.parse_args()


def run(FLAGS, cfg):
    trainer = Trainer(cfg, mode="train")
    if FLAGS.resume is not None:
        trainer.resume_weights(FLAGS.resume)
    trainer.train(FLAGS.eval)


def main():
    FLAGS = parse_args()
    cfg = load_config(FLAGS.config)
    merge_args(cfg, FLAGS)
    merge_config(FLAGS.opt)
    if "use_gpu" not in cfg:
        cfg.use_gpu = False
    if cfg.use_gpu:
        paddle.set_device("gpu")
    else:
        paddle.set_device("cpu")
    run(FLAGS, cfg)


if __name__ == "__main__":
    main()
