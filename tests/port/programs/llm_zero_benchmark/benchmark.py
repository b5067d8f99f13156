"""Tokens per second of a language model under ZeRO-2, with data of random tokens.

python -m paddle.distributed.launch --gpus 0,1,2,3 benchmark.py --size 7b
"""

import argparse
import json
import time

import numpy as np
import paddle
import paddle.distributed as dist
import paddle.nn.functional as F
from paddle.distributed.sharding import group_sharded_parallel

from modeling import SIZES, CausalLM


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=list(SIZES), default="1b")
    parser.add_argument("--vocab_size", type=int, default=32000)
    parser.add_argument("--seq_length", type=int, default=2048)
    parser.add_argument("--micro_batch_size", type=int, default=1)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--sharding_level", choices=["os", "os_g", "p_g_os"], default="os_g")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--peak_tflops", type=float, default=312.0)
    parser.add_argument("--output", default=None)
    return parser.parse_args()


def cast_parameters(model, dtype):
    """Every parameter in ``dtype``, normalizations too; decorate would have left those alone."""
    for layer in model.sublayers(include_self=True):
        layer.to(dtype=dtype)
    return model


def build(args):
    model = CausalLM(args.size, args.vocab_size, args.seq_length)
    if args.dtype == "bfloat16":
        model = cast_parameters(model, args.dtype)
    optimizer = paddle.optimizer.AdamW(
        learning_rate=args.learning_rate,
        parameters=model.parameters(),
        weight_decay=0.1,
        multi_precision=True,
    )
    scaler = paddle.amp.GradScaler(enable=False)
    model, optimizer, scaler = group_sharded_parallel(
        model, optimizer, level=args.sharding_level, scaler=scaler
    )
    return model, optimizer, scaler


def batches(args):
    rng = np.random.default_rng(dist.get_rank())
    shape = [args.micro_batch_size, args.seq_length + 1]
    while True:
        ids = paddle.to_tensor(rng.integers(0, args.vocab_size, shape))
        yield ids[:, :-1], ids[:, 1:]


def train_step(args, model, optimizer, scaler, ids, labels):
    with paddle.amp.auto_cast(enable=args.dtype != "float32", level="O2", dtype=args.dtype):
        logits = model(ids)
    loss = F.cross_entropy(
        logits.astype("float32").reshape([-1, args.vocab_size]), labels.reshape([-1])
    )
    scaled = scaler.scale(loss)
    scaled.backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.clear_grad()
    return loss


def main():
    args = parse_args()
    dist.init_parallel_env()
    paddle.seed(42)
    model, optimizer, scaler = build(args)
    plain = CausalLM(args.size, args.vocab_size, args.seq_length)
    per_token = plain.flops_per_token(args.seq_length)
    del plain
    times = []
    for step, (ids, labels) in enumerate(batches(args)):
        paddle.device.cuda.synchronize()
        start = time.perf_counter()
        loss = train_step(args, model, optimizer, scaler, ids, labels)
        paddle.device.cuda.synchronize()
        if step >= args.warmup:
            times.append(time.perf_counter() - start)
        if dist.get_rank() == 0 and step % 10 == 0:
            print("step {} loss {:.4f}".format(step, float(loss)))
        if step + 1 == args.steps:
            break
    tokens = args.micro_batch_size * args.seq_length * dist.get_world_size()
    speed = tokens / float(np.median(times))
    utilization = speed * per_token / (args.peak_tflops * 1e12 * dist.get_world_size())
    result = {
        "tokens_per_second": speed,
        "mfu": utilization,
        "memory_gib": paddle.device.cuda.max_memory_allocated() / 2**30,
    }
    if dist.get_rank() == 0:
        print(json.dumps(result))
        if args.output:
            with open(args.output, "w") as f:
                json.dump(result, f)


if __name__ == "__main__":
    main()
