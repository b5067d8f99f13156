import argparse

from seg.core import train
from seg.cvlibs import Config, SegBuilder


def parse_args():
    parser = argparse.ArgumentParser(description="Model training")
    parser.add_argument("--config", help="The path of config file.", type=str)
    parser.add_argument("--iters", help="Iterations in training.", type=int)
    parser.add_argument(
        "--precision", default="fp32", type=str, choices=["fp32", "fp16"], help="Use AMP if fp16."
    )
    parser.add_argument("--amp_level", default="O1", type=str, choices=["O1", "O2"])
    parser.add_argument("--opts", help="Update the key-value pairs of all options.", nargs="+")
    return parser.parse_args()


def main(args):
    assert args.config is not None, "No configuration file specified, please set --config"
    cfg = Config(args.config, iters=args.iters, opts=args.opts)
    builder = SegBuilder(cfg)
    train(
        builder.model,
        builder.train_dataset,
        optimizer=builder.optimizer,
        iters=cfg.iters,
        batch_size=cfg.batch_size,
        losses=builder.loss,
        precision=args.precision,
        amp_level=args.amp_level,
    )


if __name__ == "__main__":
    args = parse_args()
    main(args)
