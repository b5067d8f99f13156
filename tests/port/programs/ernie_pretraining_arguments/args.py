"""The options of pretraining."""

import argparse


def str2bool(v):
    if isinstance(v, bool):
        return v
    if v.lower() in ("yes", "true", "t", "y", "1"):
        return True
    if v.lower() in ("no", "false", "f", "n", "0"):
        return False
    raise argparse.ArgumentTypeError("Unsupported value encountered.")


def parse_args(MODEL_CLASSES):
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_type", default="ernie", type=str, help="in " + ", ".join(MODEL_CLASSES.keys()))
    parser.add_argument("--output_dir", default="./output", type=str, help="checkpoints and logs")

    # Train data config
    parser.add_argument("--input_dir", default=None, type=str, required=True, help="the preprocessed data")
    parser.add_argument("--max_seq_len", type=int, default=512, help="Max sequence length.")
    parser.add_argument("--global_batch_size", type=int, required=True,
                        help="Global batch size for all training process.")
    parser.add_argument("--micro_batch_size", type=int, default=16, help="Batch size per device for one step training.")

    # Default training config
    parser.add_argument("--weight_decay", default=0.01, type=float, help="Weight decay if we apply some.")
    parser.add_argument("--grad_clip", default=1.0, type=float, help="Grad clip for the parameter.")
    parser.add_argument("--max_lr", default=1e-4, type=float, help="The initial max learning rate for Adam.")
    parser.add_argument("--min_lr", default=1e-5, type=float, help="The initial min learning rate for Adam.")
    parser.add_argument("--warmup_rate", default=0.01, type=float, help="Linear warmup over warmup_steps for lr.")

    # Train config
    parser.add_argument("--max_steps", default=500000, type=int, help="Total number of training steps to perform.")
    parser.add_argument("--save_steps", default=10000, type=int, help="Save checkpoint every X updates steps.")
    parser.add_argument("--logging_freq", type=int, default=10, help="Log frequency.")
    parser.add_argument("--eval_freq", type=int, default=500, help="Evaluate for every X steps.")
    parser.add_argument("--eval_iters", type=int, default=10, help="Evaluate the model use X steps data.")
    parser.add_argument("--use_recompute", type=str2bool, nargs="?", const=False, help="Recompute the forward.")

    # AMP config
    parser.add_argument("--use_amp", type=str2bool, nargs="?", const=False, help="Enable mixed precision training.")
    parser.add_argument("--fp16_opt_level", type=str, default="O2", choices=["O1", "O2"],
                        help="AMP: O1 op by op, O2 pure fp16.")
    parser.add_argument("--scale_loss", type=float, default=128,
                        help="The value of scale_loss for fp16. This is only used for AMP training.")

    # Other config
    parser.add_argument("--seed", type=int, default=1234, help="Random seed for initialization")
    parser.add_argument("--device", type=str, default="gpu", choices=["cpu", "gpu", "xpu"])
    parser.add_argument("--binary_head", type=str2bool, nargs="?", const=False, default=True,
                        help="True for the sentence order prediction task.")
    return parser.parse_args()
