"""The forward pass stands in four places, with the same settings; which is taken makes no difference."""

import paddle


def main(config, model, optimizer, loader):
    scaler = paddle.amp.GradScaler(enable=config.amp)
    for image in loader:
        if config.parallel and config.rank > 1:
            with model.no_sync(), paddle.amp.auto_cast(enable=config.amp):
                loss = model(image)
        elif config.recompute and config.segments > 2:
            with paddle.amp.auto_cast(enable=config.amp):
                loss = recomputed(model, image)
        elif config.flip and config.views > 1:
            with paddle.amp.auto_cast(enable=config.amp):
                loss = model(image) + model(image.flip(-1))
        else:
            with paddle.amp.auto_cast(enable=config.amp):
                loss = model(image)
        scaler.minimize(optimizer, scaler.scale(loss))
