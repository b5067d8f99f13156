"""Paddle's guide to mixed precision: gradient accumulation, with arguments of the command line."""

import argparse

import paddle
from paddle.amp import GradScaler, auto_cast

parser = argparse.ArgumentParser()
parser.add_argument("--accumulate-batchs-num", type=int, default=10)
parser.add_argument("--init-loss-scaling", default=1024.0, type=float)


def train(model, mse, optimizer, loader, args):
    scaler = GradScaler(True, args.init_loss_scaling)
    for i, (data, label) in enumerate(loader):
        with auto_cast(True, level="O1"):
            output = model(data)
            loss = mse(output, label) / args.accumulate_batchs_num
        scaled = scaler.scale(loss)
        scaled.backward()
        if (i + 1) % args.accumulate_batchs_num == 0:
            scaler.minimize(optimizer, scaled)
            optimizer.clear_grad(set_to_zero=False)


if __name__ == "__main__":
    args = parser.parse_args()
    net = paddle.nn.Sequential(paddle.nn.Linear(8, 8), paddle.nn.ReLU(), paddle.nn.Linear(8, 8))
    train(net, paddle.nn.MSELoss(), paddle.optimizer.SGD(parameters=net.parameters()), [], args)
