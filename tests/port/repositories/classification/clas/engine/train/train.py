from clas.utils import logger


def train_epoch(engine, epoch_id, print_batch_step):
    for iter_id, batch in enumerate(engine.train_dataloader):
        with engine.auto_cast(is_eval=False):
            out = forward(engine, batch)
            loss_dict = engine.train_loss_func(out, batch[1])

        loss = loss_dict["loss"] / engine.update_freq
        scaled = engine.scaler.scale(loss)
        scaled.backward()
        if (iter_id + 1) % engine.update_freq == 0:
            for i in range(len(engine.optimizer)):
                engine.scaler.step(engine.optimizer[i])
                engine.scaler.update()
            for i in range(len(engine.optimizer)):
                engine.optimizer[i].clear_grad()
        if iter_id % print_batch_step == 0:
            logger.info("epoch {} iter {}".format(epoch_id, iter_id))


def forward(engine, batch):
    if not engine.is_rec:
        return engine.model(batch[0])
    else:
        return engine.model(batch[0], batch[1])
