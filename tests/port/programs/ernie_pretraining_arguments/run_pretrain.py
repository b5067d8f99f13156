"""Pretraining of an encoder on masked words and the order of sentences."""

import contextlib
import os

import paddle
import paddle.distributed as dist
import paddle.distributed.fleet as fleet

from args import parse_args
from data import create_pretrained_dataset
from modeling import ErnieForPretraining, ErniePretrainingCriterion

MODEL_CLASSES = {
    "ernie": (ErnieForPretraining, ErniePretrainingCriterion),
}


def args_post_process(args, worker_num):
    bsz_per_dp = args.global_batch_size // worker_num
    micro_batch_size = args.micro_batch_size
    assert args.global_batch_size % micro_batch_size == 0, "cannot do gradient accumulate"
    accumulate_steps = bsz_per_dp // micro_batch_size
    assert accumulate_steps >= 1
    args.eval_iters *= accumulate_steps
    args.accumulate_steps = accumulate_steps


@paddle.no_grad()
def run_evaluate(data_loader, model, criterion, args, global_step):
    model.eval()
    total = 0.0
    for eval_step, batch in enumerate(data_loader):
        input_ids, segment_ids, input_mask, masked_positions, masked_labels, order_labels = batch
        with paddle.amp.auto_cast(
            args.use_amp,
            custom_white_list=["softmax", "layer_norm", "gelu"],
            custom_black_list=["c_softmax_with_cross_entropy"],
            level=args.fp16_opt_level,
        ):
            scores, relationship = model(input_ids, segment_ids, input_mask, masked_positions)
            lm_loss, sop_loss = criterion(scores, relationship, masked_labels, order_labels)
        total += float(lm_loss + sop_loss)
        if eval_step >= args.eval_iters - 1:
            break
    print(f"valid step {global_step}, loss: {total / args.eval_iters:.6f}")
    model.train()


def do_train(args):
    paddle.set_device(args.device)
    worker_index = dist.get_rank()
    worker_num = dist.get_world_size()
    if worker_num > 1:
        dist.init_parallel_env()
    args_post_process(args, worker_num)

    fleet.init(is_collective=True, strategy=fleet.DistributedStrategy())
    paddle.seed(args.seed + worker_index)

    model_class, criterion_class = MODEL_CLASSES[args.model_type]
    model = model_class()
    criterion = criterion_class(with_nsp_loss=args.binary_head)

    lr_scheduler = paddle.optimizer.lr.LinearWarmup(
        paddle.optimizer.lr.PolynomialDecay(args.max_lr, args.max_steps, args.min_lr),
        int(args.warmup_rate * args.max_steps), 0.0, args.max_lr)
    clip = None
    if args.grad_clip > 0:
        clip = paddle.nn.ClipGradByGlobalNorm(clip_norm=args.grad_clip)
    decay_param = [p.name for n, p in model.named_parameters() if not any(nd in n for nd in ["bias", "norm"])]
    optimizer = paddle.optimizer.AdamW(
        learning_rate=lr_scheduler,
        parameters=model.parameters(),
        weight_decay=args.weight_decay,
        grad_clip=clip,
        apply_decay_param_fun=lambda x: x in decay_param,
        multi_precision=args.use_amp,
    )
    if args.use_amp:
        scaler = paddle.amp.GradScaler(init_loss_scaling=args.scale_loss)
        scaler = fleet.distributed_scaler(scaler)
        model = paddle.amp.decorate(models=model, level=args.fp16_opt_level)
    else:
        scaler = None
    if worker_num > 1:
        model = fleet.distributed_model(model)
        optimizer = fleet.distributed_optimizer(optimizer)

    train_data_loader, valid_data_loader = create_pretrained_dataset(args, worker_num, worker_index)
    global_step = 0
    tr_loss = paddle.to_tensor(0.0)
    for step, batch in enumerate(train_data_loader):
        input_ids, segment_ids, input_mask, masked_positions, masked_labels, order_labels = batch

        if worker_num > 1 and (args.use_recompute or ((step + 1) % args.accumulate_steps != 0)):
            # grad acc, no_sync when (step + 1) % args.accumulate_steps != 0:
            ctx_manager = model.no_sync()
        else:
            ctx_manager = contextlib.nullcontext()

        with ctx_manager:
            with paddle.amp.auto_cast(
                args.use_amp,
                custom_white_list=["softmax", "layer_norm", "gelu", "dropout"],
                custom_black_list=["c_softmax_with_cross_entropy"],
                level=args.fp16_opt_level,
            ):
                scores, relationship = model(input_ids, segment_ids, input_mask, masked_positions)
                lm_loss, sop_loss = criterion(scores, relationship, masked_labels, order_labels)
                loss = lm_loss + sop_loss if args.binary_head else lm_loss

            tr_loss_step = loss / args.accumulate_steps if args.accumulate_steps >= 1 else loss
            if args.use_amp:
                scaler.scale(tr_loss_step).backward()
            else:
                tr_loss_step.backward()
        tr_loss += tr_loss_step.detach()

        # Skip for accumulate_steps in global step
        if (step + 1) % args.accumulate_steps != 0:
            continue

        if args.use_amp:
            scaler.minimize(optimizer, tr_loss)
        else:
            optimizer.step()
        optimizer.clear_grad()
        lr_scheduler.step()
        global_step += 1

        if global_step % args.logging_freq == 0 and worker_index == 0:
            info = f"global step {global_step}, loss: {float(tr_loss):.6f}"
            if args.use_amp:
                info += ", loss_scaling: %.2f" % scaler._scale.item()
            print(info)
        tr_loss.subtract_(tr_loss)
        if global_step % args.eval_freq == 0:
            run_evaluate(valid_data_loader, model, criterion, args, global_step)
        if global_step % args.save_steps == 0 and worker_index == 0:
            paddle.save(model.state_dict(), os.path.join(args.output_dir, f"model_{global_step}.pdparams"))
        if global_step >= args.max_steps:
            return


if __name__ == "__main__":
    config = parse_args(MODEL_CLASSES)
    do_train(config)
