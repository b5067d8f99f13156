"""Recommendation: a flat configuration, with dots in its keys."""

import paddle


def main(args):
    config = load_yaml(args.config_yaml)
    dy_model_class = load_dy_model_class(args.abs_dir)
    use_gpu = config.get("runner.use_gpu", True)
    use_xpu = config.get("runner.use_xpu", False)
    use_auc = config.get("runner.use_auc", False)
    use_amp = config.get("runner.use_amp", None)
    scale_loss = config.get("runner.scale_loss", 1024)
    grad_accum = config.get("runner.gradient_accumulation", 1)
    use_fleet = config.get("runner.use_fleet", False)
    if use_xpu:
        place = paddle.set_device("xpu")
    else:
        place = paddle.set_device("gpu" if use_gpu else "cpu")
    dy_model = dy_model_class.create_model(config)
    optimizer = dy_model_class.create_optimizer(dy_model, config)
    if use_amp:
        scaler = paddle.amp.GradScaler(init_loss_scaling=scale_loss)
    if use_fleet:
        optimizer = paddle.distributed.fleet.distributed_optimizer(optimizer)
    for epoch_id in range(config.get("runner.epochs")):
        for batch_id, batch in enumerate(train_dataloader()):
            optimizer.clear_grad()
            if use_amp:
                with paddle.amp.auto_cast(enable=True, level="O1"):
                    loss, metric_list = dy_model_class.train_forward(dy_model, batch)
                scaled = scaler.scale(loss)
                scaled.backward()
                scaler.minimize(optimizer, scaled)
            else:
                loss, metric_list = dy_model_class.train_forward(dy_model, batch)
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    main(parse_args())
