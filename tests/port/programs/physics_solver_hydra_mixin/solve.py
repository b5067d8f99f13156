"""Lid-driven cavity flow, with a network that is trained on the residuals of its equations."""

import hydra
from omegaconf import DictConfig, OmegaConf
from physics.config import register_configs
from physics.trainer import FieldTrainer

register_configs()


@hydra.main(version_base="1.2", config_path="conf", config_name="cavity")
def run(cfg: DictConfig) -> None:
    print(OmegaConf.to_yaml(cfg))
    trainer = FieldTrainer(cfg)
    trainer.solve()


if __name__ == "__main__":
    run()
