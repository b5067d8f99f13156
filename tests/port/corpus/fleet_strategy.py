"""Fleet's strategy, filled from options."""

import argparse

import paddle
from paddle.distributed import fleet

parser = argparse.ArgumentParser()
parser.add_argument("--use_amp", type=str2bool, default=False)
parser.add_argument("--use_recompute", type=str2bool, default=False)
parser.add_argument("--init_loss_scaling", type=float, default=32768.0)
args = parser.parse_args()


def dist_optimizer(args, optimizer):
    strategy = fleet.DistributedStrategy()
    strategy.fuse_all_reduce_ops = True
    if args.use_recompute:
        strategy.recompute = True
    if args.use_amp:
        strategy.amp = True
        strategy.amp_configs = {
            "custom_white_list": ["softmax", "layer_norm", "gelu"],
            "init_loss_scaling": args.init_loss_scaling,
            "incr_every_n_steps": 500,
        }
    return fleet.distributed_optimizer(optimizer, strategy=strategy)


fleet.init(is_collective=True)
optimizer = dist_optimizer(args, paddle.optimizer.Adam(1e-4))
optimizer.minimize(loss)
