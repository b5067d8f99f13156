"""The loop of text recognition alone: the scaler is a parameter."""

import paddle


def train(
    config,
    train_dataloader,
    valid_dataloader,
    device,
    model,
    loss_class,
    optimizer,
    lr_scheduler,
    log_writer=None,
    scaler=None,
    amp_level="O2",
    amp_custom_black_list=[],
    amp_custom_white_list=[],
    amp_dtype="float16",
):
    for epoch in range(config["Global"]["epoch_num"]):
        model.train()
        for idx, batch in enumerate(train_dataloader):
            images = batch[0]
            if scaler:
                with paddle.amp.auto_cast(
                    level=amp_level,
                    custom_black_list=amp_custom_black_list,
                    custom_white_list=amp_custom_white_list,
                    dtype=amp_dtype,
                ):
                    preds = model(images)
                loss = loss_class(to_float32(preds), batch)
                scaled_avg_loss = scaler.scale(loss["loss"])
                scaled_avg_loss.backward()
                scaler.minimize(optimizer, scaled_avg_loss)
            else:
                preds = model(images)
                loss = loss_class(preds, batch)
                loss["loss"].backward()
                optimizer.step()
            optimizer.clear_grad()
        if valid_dataloader is not None:
            eval(model, valid_dataloader, scaler, amp_level, amp_custom_black_list, amp_dtype)


def eval(
    model,
    valid_dataloader,
    scaler=None,
    amp_level="O2",
    amp_custom_black_list=[],
    amp_dtype="float16",
):
    model.eval()
    with paddle.no_grad():
        for batch in valid_dataloader:
            if scaler:
                with paddle.amp.auto_cast(
                    level=amp_level, custom_black_list=amp_custom_black_list, dtype=amp_dtype
                ):
                    preds = model(batch[0])
            else:
                preds = model(batch[0])
