"""The command line: arguments of Trainer, task and data, and a few defaults of our own."""

import sys
from datetime import datetime

from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from flood.task import FloodDataModule, SegmentationTask


class FloodCLI(LightningCLI):
    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--predict_output_dir", default=None)
        parser.add_lightning_class_args(ModelCheckpoint, "checkpoint")
        parser.set_defaults(
            {
                "checkpoint.monitor": "val/loss",
                "checkpoint.filename": "{epoch}",
                "trainer.precision": "bf16-mixed",
                "trainer.gradient_clip_val": 0.5,
            }
        )
        parser.link_arguments("data.num_classes", "model.num_classes", apply_on="instantiate")

    def instantiate_classes(self) -> None:
        super().instantiate_classes()
        config = getattr(self.config, self.subcommand or "", self.config)
        self.trainer.predict_output_dir = config.get("predict_output_dir")


def build_cli(args: ArgsType = None) -> LightningCLI:
    if len(sys.argv) == 1 and args is None:
        sys.exit("A subcommand is missing: fit, validate, test or predict.")
    return FloodCLI(
        model_class=SegmentationTask,
        datamodule_class=FloodDataModule,
        seed_everything_default=int(datetime.now().timestamp()) % 2**31,
        save_config_kwargs={"overwrite": True},
        trainer_defaults={"log_every_n_steps": 10},
        args=args,
    )
