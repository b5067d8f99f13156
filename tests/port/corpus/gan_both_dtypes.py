"""Image generation: float16 or bfloat16, by one option each, which no default decides."""

import argparse

import paddle

parser = argparse.ArgumentParser()
parser.add_argument("--fp16", action="store_true")
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--max_grad_norm", type=float, default=1.0)
args = parser.parse_args()

if args.fp16 and args.bf16:
    raise ValueError("--fp16 and --bf16 exclude each other")
model, optimizer = build(args)
amp_dtype = "float16" if args.fp16 else "bfloat16"
scaler = paddle.amp.GradScaler(enable=args.fp16, init_loss_scaling=2.0**15)
for step, batch in enumerate(loader):
    with paddle.amp.auto_cast(enable=args.fp16 or args.bf16, level="O1", dtype=amp_dtype):
        loss = model(batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    paddle.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.clear_grad()
