"""Pretraining of a language model on several devices: O2 and a scaler that knows of the others."""

import argparse

import paddle
from paddle.distributed import fleet


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--use_pure_fp16", type=strtobool, default=False)
    parser.add_argument("--scale_loss", type=float, default=32768)
    parser.add_argument("--grad_clip", type=float, default=1.0)
    parser.add_argument("--local_batch_size", type=int, default=8)
    parser.add_argument("--micro_batch_size", type=int, default=8)
    parser.add_argument("--sharding_stage", type=int, default=1)
    return parser.parse_args()


def do_train(args):
    strategy = fleet.DistributedStrategy()
    fleet.init(is_collective=True, strategy=strategy)
    model = GPTForPretraining(GPTModel(**model_config))
    clip = None
    if args.grad_clip > 0:
        clip = paddle.nn.ClipGradByGlobalNorm(clip_norm=args.grad_clip)
    optimizer = paddle.optimizer.AdamW(
        learning_rate=lr_scheduler,
        parameters=model.parameters(),
        grad_clip=clip,
        multi_precision=args.use_pure_fp16,
    )
    if args.use_pure_fp16:
        scaler = paddle.amp.GradScaler(init_loss_scaling=args.scale_loss)
        scaler = fleet.distributed_scaler(scaler)
        model = paddle.amp.decorate(models=model, level="O2", save_dtype="float32")
    model = fleet.distributed_model(model)
    optimizer = fleet.distributed_optimizer(optimizer)
    for step, batch in enumerate(train_data_loader()):
        tokens, loss_mask, position_ids, labels = batch
        with paddle.amp.auto_cast(
            args.use_pure_fp16,
            custom_black_list=["reduce_sum", "c_softmax_with_cross_entropy", "elementwise_div"],
            level="O2",
        ):
            loss = criterion(model(tokens, position_ids), labels, loss_mask)
        if args.use_pure_fp16:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        optimizer.clear_grad()


do_train(parse_args())
