import argparse

import paddle


def parse_args():
    parser = argparse.ArgumentParser()
    group = parser.add_argument_group("amp")
    group.add_argument("--precision", default="fp32", choices=["fp32", "fp16", "bf16"])
    return parser.parse_args()


def main(args):
    dtype = {"fp16": "float16", "bf16": "bfloat16"}
    use_amp = args.precision != "fp32"
    scaler = paddle.amp.GradScaler(enable=args.precision == "fp16")
    for x in loader:
        with paddle.amp.auto_cast(enable=use_amp, dtype=dtype.get(args.precision, "float16")):
            loss = model(x)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


if __name__ == "__main__":
    main(parse_args())
