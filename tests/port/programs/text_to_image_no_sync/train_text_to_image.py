"""Fine-tunes the U-Net of a latent diffusion model on captioned images."""

import argparse
import contextlib
import os

import paddle
import paddle.nn.functional as F
from diffusion import AverageOfWeights, NoiseSchedule, TextEncoder, UNet, latents_and_captions
from paddle import nn
from paddle.distributed.fleet.utils.hybrid_parallel_util import fused_allreduce_gradients


def parse_args(input_args=None):
    parser = argparse.ArgumentParser(description="text to image")
    parser.add_argument("--train_data_dir", type=str, default="./latents")
    parser.add_argument("--output_dir", type=str, default="./text-to-image")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--train_batch_size", type=int, default=8)
    parser.add_argument("--max_train_steps", type=int, default=20000)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=4)
    parser.add_argument("--gradient_checkpointing", action="store_true")
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--snr_gamma", type=float, default=None)
    parser.add_argument("--use_ema", action="store_true")
    parser.add_argument("--max_grad_norm", type=float, default=1.0)
    parser.add_argument(
        "--mixed_precision",
        type=str,
        default=None,
        choices=["no", "fp16", "bf16"],
        help="fp16 needs a GPU of the generation Volta, bf16 of Ampere",
    )
    parser.add_argument("--fp16_opt_level", type=str, default="O1")
    args = parser.parse_args(input_args)
    if args.mixed_precision is None:
        args.mixed_precision = "no"
    return args


def main():
    args = parse_args()
    num_processes = paddle.distributed.get_world_size()
    if num_processes > 1:
        paddle.distributed.init_parallel_env()
    paddle.seed(args.seed)

    unet = UNet()
    text_encoder = TextEncoder()
    text_encoder.eval()
    noise_schedule = NoiseSchedule()
    optimizer = paddle.optimizer.AdamW(
        learning_rate=args.learning_rate,
        parameters=unet.parameters(),
        grad_clip=nn.ClipGradByGlobalNorm(args.max_grad_norm) if args.max_grad_norm > 0 else None,
    )

    do_grad_scaling = False
    scaler = None
    if args.mixed_precision == "fp16":
        scaler = paddle.amp.GradScaler(
            enable=True, init_loss_scaling=65536.0, incr_every_n_steps=2000
        )
        do_grad_scaling = True
    ema = AverageOfWeights(unet) if args.use_ema else None
    model = paddle.DataParallel(unet) if num_processes > 1 else unet
    black_list = ["reduce_sum", "c_softmax_with_cross_entropy"]

    global_step = 0
    while global_step < args.max_train_steps:
        loader = latents_and_captions(args.train_data_dir, args.train_batch_size)
        for step, (latents, captions) in enumerate(loader):
            with paddle.no_grad():
                states = text_encoder(captions)
            noise = paddle.randn(latents.shape)
            timesteps = noise_schedule.sample(latents.shape[0])
            noisy = noise_schedule.add_noise(latents, noise, timesteps)

            accumulating = (step + 1) % args.gradient_accumulation_steps != 0
            if num_processes > 1 and (args.gradient_checkpointing or accumulating):
                ctx_manager = model.no_sync()
            else:
                ctx_manager = contextlib.nullcontext()

            with ctx_manager:
                with paddle.amp.auto_cast(
                    enable=args.mixed_precision in ["fp16", "bf16"],
                    level=args.fp16_opt_level,
                    custom_black_list=black_list,
                    custom_white_list=["lookup_table", "lookup_table_v2"]
                    if args.fp16_opt_level == "O2"
                    else ["layer_norm"],
                    dtype="bfloat16" if args.mixed_precision == "bf16" else "float16",
                ):
                    prediction = model(noisy, timesteps, states)

                if args.snr_gamma is None:
                    loss = F.mse_loss(prediction.cast("float32"), noise)
                else:
                    weights = noise_schedule.snr_weights(timesteps, args.snr_gamma)
                    loss = F.mse_loss(prediction.cast("float32"), noise, reduction="none")
                    loss = (loss.mean(axis=[1, 2, 3]) * weights).mean()
                if args.gradient_accumulation_steps > 1:
                    loss = loss / args.gradient_accumulation_steps
                if do_grad_scaling:
                    scaler.scale(loss).backward()
                else:
                    loss.backward()

            if (step + 1) % args.gradient_accumulation_steps == 0:
                if num_processes > 1 and args.gradient_checkpointing:
                    fused_allreduce_gradients(list(unet.parameters()), None)
                if do_grad_scaling:
                    scale_before = float(scaler._scale)
                    scaler.step(optimizer)
                    scaler.update()
                    if float(scaler._scale) < scale_before:
                        print(f"step {global_step} was skipped, the scale is {float(scaler._scale)}")
                else:
                    optimizer.step()
                optimizer.clear_grad()
                if ema is not None:
                    ema.step(unet)
                global_step += 1
                if global_step % 500 == 0:
                    path = os.path.join(args.output_dir, f"unet-{global_step}.pdparams")
                    paddle.save(unet.state_dict(), path)
                if global_step >= args.max_train_steps:
                    break


if __name__ == "__main__":
    main()
