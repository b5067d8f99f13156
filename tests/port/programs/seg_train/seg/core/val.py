import numpy as np
import paddle
import paddle.nn.functional as F

from seg.utils import logger


def inference(model, im):
    logits = model(im)[0]
    return paddle.argmax(F.interpolate(logits, im.shape[2:], mode='bilinear'), axis=1)


def evaluate(model, eval_dataset, precision='fp32', amp_level='O1', num_workers=0):
    """The mean intersection over union, and the accuracy of pixels."""
    model.eval()
    loader = paddle.io.DataLoader(eval_dataset, batch_size=1, num_workers=num_workers)
    logger.info("Start evaluating (total_samples: {})...".format(len(eval_dataset)))
    classes = eval_dataset.num_classes
    confusion = np.zeros((classes, classes))
    with paddle.no_grad():
        for data in loader:
            label = data['label'].astype('int64')
            if precision == 'fp16':
                with paddle.amp.auto_cast(
                        level=amp_level,
                        enable=True,
                        custom_white_list={
                            "elementwise_add", "batch_norm", "sync_batch_norm"
                        },
                        custom_black_list={'bilinear_interp_v2'}):
                    pred = inference(model, data['img'])
            else:
                pred = inference(model, data['img'])
            seen = label.numpy() != eval_dataset.ignore_index
            index = classes * label.numpy()[seen] + pred.numpy()[seen]
            confusion += np.bincount(index, minlength=classes**2).reshape(classes, classes)
    right = np.diag(confusion)
    union = confusion.sum(0) + confusion.sum(1) - right
    return float(np.mean(right / np.maximum(union, 1))), float(right.sum() / confusion.sum())
