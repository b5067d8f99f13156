"""Fine-tuning of a language model, with options of the command line."""

import argparse

import paddle
from paddlenlp.transformers import AutoModelForSequenceClassification


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--learning_rate", default=1e-4, type=float)
    parser.add_argument("--max_grad_norm", default=1.0, type=float)
    parser.add_argument("--max_steps", default=-1, type=int)
    parser.add_argument("--device", default="gpu", choices=["cpu", "gpu", "xpu", "npu"])
    parser.add_argument(
        "--use_amp", type=distutils.util.strtobool, default=False, help="Enable mixed precision."
    )
    parser.add_argument("--scale_loss", type=float, default=2**15)
    return parser.parse_args()


def do_train(args):
    paddle.set_device(args.device)
    if paddle.distributed.get_world_size() > 1:
        paddle.distributed.init_parallel_env()
    model = AutoModelForSequenceClassification.from_pretrained(args.model_name_or_path)
    if paddle.distributed.get_world_size() > 1:
        model = paddle.DataParallel(model)
    optimizer = paddle.optimizer.AdamW(
        learning_rate=args.learning_rate,
        parameters=model.parameters(),
        grad_clip=paddle.nn.ClipGradByGlobalNorm(args.max_grad_norm),
    )
    if args.use_amp:
        scaler = paddle.amp.GradScaler(init_loss_scaling=args.scale_loss)
    global_step = 0
    for epoch in range(args.num_train_epochs):
        for step, batch in enumerate(train_data_loader):
            global_step += 1
            input_ids, segment_ids, labels = batch
            with paddle.amp.auto_cast(
                args.use_amp, custom_white_list=["layer_norm", "softmax", "gelu"]
            ):
                logits = model(input_ids, segment_ids)
                loss = loss_fct(logits, labels)
            if args.use_amp:
                scaler.scale(loss).backward()
                scaler.minimize(optimizer, loss)
            else:
                loss.backward()
                optimizer.step()
            optimizer.clear_grad()
            if global_step % args.save_steps == 0:
                evaluate(model, loss_fct)


if __name__ == "__main__":
    do_train(parse_args())
