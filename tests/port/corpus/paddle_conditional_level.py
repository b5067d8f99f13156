import argparse

import paddle

parser = argparse.ArgumentParser()
parser.add_argument("--pure", action="store_true")
parser.add_argument("--init-scale", type=float, default=2.0 ** 13)
parser.add_argument("--accum", type=int, default=4)
args = parser.parse_args()

level = "O2" if args.pure else "O1"
if args.pure:
    model, optimizer = paddle.amp.decorate(models=model, optimizers=optimizer, level=level)
scaler = paddle.amp.GradScaler(init_loss_scaling=args.init_scale)

for step, batch in enumerate(loader):
    with paddle.amp.auto_cast(level=level):
        loss = model(batch) / args.accum
    scaler.scale(loss).backward()
    if (step + 1) % args.accum == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
