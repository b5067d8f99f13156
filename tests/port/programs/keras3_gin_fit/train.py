"""Trains a note classifier with Keras 3; gin files have the settings.

    python train.py --gin_file=configs/notes.gin --gin_param="train.epochs = 5"
"""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import gin

import pipeline


def parse_gin(args):
    """Files first, in their order, then the bindings of the command line."""
    files = [os.path.expanduser(path) for path in args.gin_file]
    with gin.unlock_config():
        gin.parse_config_files_and_bindings(files, args.gin_param, skip_unknown=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gin_file", action="append", default=[])
    parser.add_argument("--gin_param", action="append", default=[])
    parser.add_argument("--save_dir", default="runs/notes")
    args = parser.parse_args()
    parse_gin(args)

    pipeline.set_precision()
    model = pipeline.build_model()
    pipeline.train(model, pipeline.build_optimizer(), save_dir=args.save_dir)
    with open(os.path.join(args.save_dir, "operative_config.gin"), "w") as file:
        file.write(gin.operative_config_str())


if __name__ == "__main__":
    main()
