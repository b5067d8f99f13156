import paddle
import paddle.nn as nn
import paddle.nn.functional as F

from seg.cvlibs import manager


@manager.LOSSES.add_component
class CrossEntropyLoss(nn.Layer):
    def __init__(self, ignore_index=255):
        super().__init__()
        self.ignore_index = ignore_index

    def forward(self, logit, label):
        logit = logit.transpose([0, 2, 3, 1])
        return F.cross_entropy(logit, label, ignore_index=self.ignore_index)


@manager.LOSSES.add_component
class OhemCrossEntropyLoss(nn.Layer):
    """The pixels that are hardest, and at least so many of them."""

    def __init__(self, thresh=0.7, min_kept=10000, ignore_index=255):
        super().__init__()
        self.thresh, self.min_kept, self.ignore_index = thresh, min_kept, ignore_index

    def forward(self, logit, label):
        logit = logit.transpose([0, 2, 3, 1])
        errors = F.cross_entropy(logit, label, reduction='none', ignore_index=self.ignore_index)
        errors = errors.flatten()
        count = min(self.min_kept, errors.shape[0])
        hardest = paddle.topk(errors.detach(), count)[0][-1]
        limit = paddle.minimum(hardest, -paddle.log(paddle.to_tensor(self.thresh)))
        kept = (errors >= limit).astype(errors.dtype)
        return (errors * kept).sum() / (kept.sum() + 1e-6)
