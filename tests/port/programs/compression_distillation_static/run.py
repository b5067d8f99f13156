"""python run.py --config_path=configs/mobilenet_dis.yaml --save_dir=output"""

import argparse

import numpy as np
import paddle
import yaml

from slim.compressor import AutoCompression


def argsparser():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config_path", type=str, default=None, required=True, help="path of compression strategy config.")
    parser.add_argument("--save_dir", type=str, default="output", help="directory to save compressed model.")
    parser.add_argument("--devices", type=str, default="gpu", help="which device used to compress.")
    return parser


def load_slim_config(config_path):
    with open(config_path) as f:
        return yaml.load(f, Loader=yaml.FullLoader)


def reader(global_config):
    size = global_config["image_size"]
    for _ in range(global_config["batches"]):
        yield {
            "image": np.random.rand(global_config["batch_size"], 3, size, size).astype("float32"),
            "label": np.random.randint(0, global_config["num_classes"], (global_config["batch_size"], 1)),
        }


def main(args):
    all_config = load_slim_config(args.config_path)
    assert "Global" in all_config, f"Key 'Global' not found in config file. \n{all_config}"
    global_config = all_config["Global"]
    ac = AutoCompression(
        model_dir=global_config["model_dir"],
        save_dir=args.save_dir,
        config=all_config,
        num_classes=global_config["num_classes"],
        image_size=global_config["image_size"],
        train_dataloader=lambda: reader(global_config))
    ac.compress()


if __name__ == "__main__":
    paddle.enable_static()
    args = argsparser().parse_args()
    assert args.devices in ["cpu", "gpu", "xpu", "npu"]
    paddle.set_device(args.devices)
    main(args)
