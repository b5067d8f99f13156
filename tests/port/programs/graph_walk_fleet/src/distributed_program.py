"""How the program is distributed."""

import paddle
import paddle.distributed.fleet as fleet


def get_strategy(args):
    """get train strategy"""
    strategy = fleet.DistributedStrategy()
    build_strategy = paddle.static.BuildStrategy()
    build_strategy.enable_inplace = True
    strategy.build_strategy = build_strategy
    strategy.fuse_grad_size_in_MB = args.fuse_grad_size_in_MB if args.fuse_grad_size_in_MB else 32
    if args.gradient_merge:
        strategy.gradient_merge = True
        strategy.gradient_merge_configs = {
            "k_steps": args.gradient_merge.k_steps,
            "avg": args.gradient_merge.avg,
        }
    return strategy
