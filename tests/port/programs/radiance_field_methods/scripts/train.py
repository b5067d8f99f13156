"""python scripts/train.py field-facto --max-num-iterations 30000"""

import argparse
import os
import random
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import numpy as np
import torch

from nerf.methods import method_configs

# speedup for when input size to model doesn't change (much)
torch.backends.cudnn.benchmark = True


def _set_random_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def train_loop(local_rank, world_size, config, global_rank=0):
    """Sets up and runs the trainer, per process."""
    _set_random_seed(config.machine.seed + global_rank)
    trainer = config.setup(local_rank=local_rank, world_size=world_size)
    trainer.setup()
    trainer.train()


def launch(main_func, num_devices_per_machine, config):
    if num_devices_per_machine == 1:
        main_func(local_rank=0, world_size=1, config=config)
    else:
        torch.multiprocessing.spawn(
            main_func, args=(num_devices_per_machine, config), nprocs=num_devices_per_machine)


def main(config):
    launch(main_func=train_loop, num_devices_per_machine=config.machine.num_devices, config=config)


def entrypoint():
    """Choose a base configuration and override values."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method", nargs="?", default="field-facto", choices=list(method_configs))
    parser.add_argument("--max-num-iterations", type=int, default=None)
    args = parser.parse_args()
    config = method_configs[args.method]
    if args.max_num_iterations is not None:
        config.max_num_iterations = args.max_num_iterations
    main(config)


if __name__ == "__main__":
    entrypoint()
