"""One epoch of an older classification engine: what is made elsewhere comes with `engine`."""

import paddle


def train_epoch(engine, epoch_id, print_batch_step):
    tic = time.time()
    for iter_id, batch in enumerate(engine.train_dataloader):
        if iter_id >= engine.max_iter:
            break
        batch_size = batch[0].shape[0]
        engine.global_step += 1
        if engine.amp:
            amp_level = engine.config["AMP"].get("level", "O1").upper()
            with paddle.amp.auto_cast(
                custom_black_list={"flatten_contiguous_range", "greater_than"}, level=amp_level
            ):
                out = forward(engine, batch)
                loss_dict = engine.train_loss_func(out, batch[1])
        else:
            out = forward(engine, batch)
            loss_dict = engine.train_loss_func(out, batch[1])
        if engine.amp:
            scaled = engine.scaler.scale(loss_dict["loss"])
            scaled.backward()
            engine.scaler.minimize(engine.optimizer, scaled)
        else:
            loss_dict["loss"].backward()
            engine.optimizer.step()
        engine.optimizer.clear_grad()
        engine.lr_sch.step()


def forward(engine, batch):
    if not engine.is_rec:
        return engine.model(batch[0])
    return engine.model(batch[0], batch[1])
