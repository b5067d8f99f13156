import paddle


def train(dev, args):
    # clip gradient
    if args.grad_clip:
        clip = paddle.nn.ClipGradByValue(max=5.0)
    else:
        clip = None
    optim = paddle.optimizer.Momentum(
        parameters=dev.parameters(), learning_rate=args.lr, momentum=0.9, grad_clip=clip
    )
    scaler = paddle.amp.GradScaler()
    for x, y in args.data:
        with paddle.amp.auto_cast(custom_black_list=["reduce_mean"], level="O1"):
            loss = dev(x, y)
        scaler.scale(loss).backward()
        scaler.step(optim)
        scaler.update()
        optim.clear_grad()
