"""python tools/train_net.py --config-file configs/cascade_fpn_1x.yaml SOLVER.BASE_LR 0.01"""

import argparse
import logging
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

import torch
from torch.nn.parallel import DistributedDataParallel

from det.config import get_cfg
from det.model import build_model, build_train_loader
from det.solver import build_lr_scheduler, build_optimizer
from det.train_loop import AMPTrainer, SimpleTrainer, TrainerBase

logger = logging.getLogger("det")


def default_argument_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config-file", default="", metavar="FILE", help="path to config file")
    parser.add_argument("--resume", action="store_true", help="attempt to resume from the checkpoint directory")
    parser.add_argument("--num-gpus", type=int, default=1, help="number of gpus *per machine*")
    parser.add_argument("opts", default=None, nargs=argparse.REMAINDER,
                        help="Modify config options at the end of the command, as \"PATH.KEY VALUE\" pairs.")
    return parser


def create_ddp_model(model, **kwargs):
    if not torch.distributed.is_initialized():
        return model
    return DistributedDataParallel(model, device_ids=[torch.cuda.current_device()], **kwargs)


class DefaultTrainer(TrainerBase):
    def __init__(self, cfg):
        super().__init__()
        # Assume these objects must be constructed in this order.
        model = build_model(cfg)
        optimizer = build_optimizer(cfg, model)
        data_loader = build_train_loader(cfg)
        model = create_ddp_model(model, broadcast_buffers=False)
        self._trainer = (AMPTrainer if cfg.SOLVER.AMP.ENABLED else SimpleTrainer)(model, data_loader, optimizer)
        self.scheduler = build_lr_scheduler(cfg, optimizer)
        self.start_iter = 0
        self.max_iter = cfg.SOLVER.MAX_ITER
        self.cfg = cfg

    def run_step(self):
        self._trainer.iter = self.iter
        self._trainer.run_step()

    def after_step(self):
        self.scheduler.step()
        if (self.iter + 1) % self.cfg.SOLVER.CHECKPOINT_PERIOD == 0:
            os.makedirs(self.cfg.OUTPUT_DIR, exist_ok=True)
            path = os.path.join(self.cfg.OUTPUT_DIR, f"model_{self.iter:07d}.pth")
            torch.save({"trainer": self._trainer.state_dict()}, path)


def setup(args):
    """Create configs and perform basic setups."""
    cfg = get_cfg()
    cfg.merge_from_file(args.config_file)
    cfg.merge_from_list(args.opts)
    cfg.freeze()
    torch.manual_seed(cfg.SEED)
    return cfg


def main(args):
    cfg = setup(args)
    trainer = DefaultTrainer(cfg)
    return trainer.train()


if __name__ == "__main__":
    main(default_argument_parser().parse_args())
