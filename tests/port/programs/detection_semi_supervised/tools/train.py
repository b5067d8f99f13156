"""Semi-supervised detection: python tools/train.py -c configs/semi_detr_sup010.yml --amp --eval"""

import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter

parent_path = os.path.abspath(os.path.join(__file__, *([".."] * 2)))
sys.path.insert(0, parent_path)

import paddle
import yaml
from paddle.distributed import fleet

import detlib.modules  # noqa: F401, registers
from detlib.engine import SemiTrainer, Trainer
from detlib.workspace import load_config, merge_config


class ArgsParser(ArgumentParser):
    def __init__(self):
        super().__init__(formatter_class=RawDescriptionHelpFormatter)
        self.add_argument("-c", "--config", help="configuration file to use")
        self.add_argument("-o", "--opt", nargs="*", help="set configuration options")

    def parse_args(self, argv=None):
        args = super().parse_args(argv)
        assert args.config is not None, "Please specify --config=configure_file_path."
        args.opt = self._parse_opt(args.opt)
        return args

    def _parse_opt(self, opts):
        config = {}
        for s in opts or []:
            key, value = s.strip().split("=", 1)
            where = config
            *path, last = key.split(".")
            for name in path:
                where = where.setdefault(name, {})
            where[last] = yaml.safe_load(value)
        return config


def parse_args():
    parser = ArgsParser()
    parser.add_argument("--eval", action="store_true", default=False, help="evaluate while training")
    parser.add_argument("-r", "--resume", default=None, help="weights path for resume")
    parser.add_argument("--amp", action="store_true", default=False, help="Enable auto mixed precision training.")
    parser.add_argument("--fleet", action="store_true", default=False, help="Use fleet or not")
    parser.add_argument("--use_vdl", type=bool, default=False, help="record the data to VisualDL")
    return parser.parse_args()


def merge_args(config, args, exclude_args=("config", "opt")):
    for k, v in vars(args).items():
        if k not in exclude_args:
            config[k] = v
    return config


def run(FLAGS, cfg):
    if cfg.fleet:
        fleet.init(is_collective=True)
    elif paddle.distributed.get_world_size() > 1:
        paddle.distributed.init_parallel_env()

    ssod_method = cfg.get("ssod_method", None)
    if ssod_method is None:
        trainer = Trainer(cfg, mode="train")
    elif ssod_method == "MeanTeacher":
        trainer = SemiTrainer(cfg, mode="train")
    else:
        raise ValueError(f"No semi-supervised method {ssod_method}.")

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
    paddle.set_device("gpu" if cfg.use_gpu else "cpu")
    run(FLAGS, cfg)


if __name__ == "__main__":
    main()
