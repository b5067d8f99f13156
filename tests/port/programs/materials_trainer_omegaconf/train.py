"""Formation energy of crystals: python train.py -c configs/formation_energy.yaml Trainer.max_epochs=50"""

import argparse

from matter.data import crystal_loader
from matter.model import AtomNet
from matter.optim import build_optimizer
from matter.trainer import BaseTrainer
from omegaconf import OmegaConf


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-c", "--config", default="configs/formation_energy.yaml")
    args, dynamic_args = parser.parse_known_args()

    config = OmegaConf.load(args.config)
    config = OmegaConf.merge(config, OmegaConf.from_dotlist(dynamic_args))
    config = OmegaConf.to_container(config, resolve=True)

    loader = crystal_loader(config["Dataset"]["train"])
    model = AtomNet(**config["Model"]["__init_params__"])
    optimizer = build_optimizer(config["Optimizer"], model)
    trainer = BaseTrainer(config["Trainer"], model, loader, optimizer)
    trainer.train()


if __name__ == "__main__":
    main()
