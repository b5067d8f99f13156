import paddle


@paddle.no_grad()
def classification_eval(engine, epoch_id=0):
    for batch in engine.eval_dataloader:
        with engine.auto_cast(is_eval=True):
            engine.model(batch[0])
    return 0.0
