import argparse


def bool_flag(text):
    if text.lower() in {"off", "false", "0"}:
        return False
    if text.lower() in {"on", "true", "1"}:
        return True
    raise argparse.ArgumentTypeError("invalid value for a boolean flag")


def get_parser():
    parser = argparse.ArgumentParser(description="Function prediction", add_help=False)
    parser.add_argument("--dump_path", type=str, default="./experiments")
    parser.add_argument("--print_freq", type=int, default=100)
    parser.add_argument("--env_base_seed", type=int, default=0)

    # precision
    parser.add_argument("--fp16", type=bool_flag, default=False, help="Run model with float16")
    parser.add_argument(
        "--amp", type=int, default=-1, help="-1: full precision; any other: autocast, with scaling"
    )
    parser.add_argument("--loss_scale", type=float, default=4096.0)

    # model
    parser.add_argument("--emb_dim", type=int, default=256)
    parser.add_argument("--n_layers", type=int, default=4)
    parser.add_argument("--n_heads", type=int, default=8)

    # training
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--clip_grad_norm", type=float, default=0.5, help="0 to disable")
    parser.add_argument("--n_steps_per_epoch", type=int, default=3000)
    parser.add_argument("--max_epoch", type=int, default=100)
    parser.add_argument(
        "--accumulate_gradients", type=int, default=2, help="N mini-batches per update"
    )
    return parser
