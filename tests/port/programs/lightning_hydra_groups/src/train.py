"""python src/train.py experiment=protein trainer=gpu"""

import logging
import sys
from pathlib import Path
from typing import Any, Optional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import hydra
import lightning as L
from lightning import Callback, LightningModule, Trainer
from omegaconf import DictConfig

log = logging.getLogger(__name__)


def instantiate_callbacks(cfg: Optional[DictConfig]) -> list[Callback]:
    callbacks = []
    for entry in (cfg or {}).values():
        if isinstance(entry, DictConfig) and "_target_" in entry:
            log.info("Instantiating callback <%s>", entry._target_)
            callbacks.append(hydra.utils.instantiate(entry))
    return callbacks


def train(cfg: DictConfig) -> dict[str, Any]:
    if cfg.get("seed"):
        L.seed_everything(cfg.seed, workers=True)

    log.info("Instantiating model <%s>", cfg.model._target_)
    model: LightningModule = hydra.utils.instantiate(cfg.model)

    log.info("Instantiating trainer <%s>", cfg.trainer._target_)
    callbacks = instantiate_callbacks(cfg.get("callbacks"))
    trainer: Trainer = hydra.utils.instantiate(cfg.trainer, callbacks=callbacks)

    if cfg.get("train"):
        log.info("Starting training!")
        trainer.fit(model=model, ckpt_path=cfg.get("ckpt_path"))
    return dict(trainer.callback_metrics)


@hydra.main(version_base="1.3", config_path="../configs", config_name="train.yaml")
def main(cfg: DictConfig) -> Optional[float]:
    metrics = train(cfg)
    return metrics.get(cfg.get("optimized_metric"))


if __name__ == "__main__":
    main()
