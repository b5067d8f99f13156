"""python launch.py --config configs/config_stereo.py; without a file, the defaults of codec/hparams.py."""

import argparse

from codec.hparams import load_config

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train the audio codec.")
    parser.add_argument("--config", type=str, default=None, help="Path to a Python file.")
    args = parser.parse_args()
    if args.config:
        load_config(args.config)

    from codec.train import main  # it reads the settings when it is imported

    main()
