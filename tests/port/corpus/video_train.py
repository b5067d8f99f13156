"""Video recognition: everything is a parameter, and each has a default."""

import paddle
from paddlevideo.utils import build_record, get_logger


def train_model(
    cfg,
    weights=None,
    parallel=True,
    validate=True,
    amp=None,
    max_iters=None,
    use_fleet=False,
    profiler_options=None,
):
    logger = get_logger("paddlevideo")
    batch_size = cfg.DATASET.get("batch_size", 8)
    use_gradient_accumulation = cfg.get("GRADIENT_ACCUMULATION", None)
    if amp is not None:
        scaler = paddle.amp.GradScaler(
            init_loss_scaling=2.0**16, incr_every_n_steps=2000, decr_every_n_nan_or_inf=1
        )
        model, optimizer = build(cfg)
        if amp == "O2":
            model, optimizer = paddle.amp.decorate(
                models=model, optimizers=optimizer, level="O2", master_weight=True, save_dtype=None
            )
    for epoch in range(0, cfg.epochs):
        model.train()
        for i, data in enumerate(train_loader):
            if amp is not None:
                with paddle.amp.auto_cast(custom_black_list={"reduce_mean", "conv3d"}, level=amp):
                    outputs = model(data, mode="train")
                avg_loss = outputs["loss"]
                scaled = scaler.scale(avg_loss)
                scaled.backward()
                scaler.minimize(optimizer, scaled)
                optimizer.clear_grad()
            else:
                outputs = model(data, mode="train")
                outputs["loss"].backward()
                optimizer.step()
                optimizer.clear_grad()
