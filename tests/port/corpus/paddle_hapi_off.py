import argparse
import paddle

parser = argparse.ArgumentParser()
parser.add_argument("--fp16", action="store_true")
args = parser.parse_args()
model = paddle.Model(network)
model.prepare(optim, loss, amp_configs="O1" if args.fp16 else None)
