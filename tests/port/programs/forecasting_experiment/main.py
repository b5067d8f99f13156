import argparse

import paddle

from exp.exp_model import ExpModel

parser = argparse.ArgumentParser(description="Long sequence forecasting")
parser.add_argument("--data", type=str, default="ETTh1", help="data set")
parser.add_argument("--root_path", type=str, default="./data/ETT/")
parser.add_argument("--seq_len", type=int, default=96)
parser.add_argument("--label_len", type=int, default=48)
parser.add_argument("--pred_len", type=int, default=24)
parser.add_argument("--enc_in", type=int, default=7)
parser.add_argument("--c_out", type=int, default=7)
parser.add_argument("--d_model", type=int, default=512)
parser.add_argument("--n_heads", type=int, default=8)
parser.add_argument("--e_layers", type=int, default=2)
parser.add_argument("--dropout", type=float, default=0.05)
parser.add_argument("--features", type=str, default="M", help="M, S or MS")
parser.add_argument("--batch_size", type=int, default=32)
parser.add_argument("--learning_rate", type=float, default=1e-4)
parser.add_argument("--lradj", type=str, default="type1")
parser.add_argument("--train_epochs", type=int, default=6)
parser.add_argument("--patience", type=int, default=3)
parser.add_argument("--itr", type=int, default=2, help="experiments")
parser.add_argument("--checkpoints", type=str, default="./checkpoints/")
parser.add_argument("--use_amp", action="store_true", default=False, help="mixed precision")
parser.add_argument("--use_gpu", type=bool, default=True)


if __name__ == "__main__":
    args = parser.parse_args()
    args.use_gpu = paddle.is_compiled_with_cuda() and args.use_gpu
    print("Args in experiment:")
    print(args)
    for run in range(args.itr):
        setting = "{}_sl{}_pl{}_dm{}_{}".format(
            args.data, args.seq_len, args.pred_len, args.d_model, run
        )
        exp = ExpModel(args)
        print(">>>>>>>start training : {}>>>>>>>>>>".format(setting))
        exp.main(setting)
        paddle.device.cuda.empty_cache()
