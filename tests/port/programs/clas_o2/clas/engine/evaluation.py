import paddle

from clas.utils import logger


def classification_eval(engine, epoch_id=0):
    right = total = 0.0
    for batch in engine.eval_dataloader:
        if engine.amp and engine.amp_eval:
            with paddle.amp.auto_cast(
                custom_black_list={"flatten_contiguous_range", "greater_than"},
                level=engine.amp_level,
            ):
                out = engine.model(batch[0])
        else:
            out = engine.model(batch[0])
        right += float((out.argmax(-1) == batch[1].flatten()).astype("float32").sum())
        total += len(batch[0])
    logger.info("[Eval][Epoch {}] top1: {:.5f}".format(epoch_id, right / total))
    return right / total
