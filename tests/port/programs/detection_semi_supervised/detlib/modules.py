"""What the configuration makes by name: model, learning rate, optimizer, readers."""

import paddle
import paddle.nn as nn
import paddle.nn.functional as F
from paddle import optimizer as optimizers
from paddle import regularizer as regularizers

from .workspace import register


@register
class SemiDETR(nn.Layer):
    def __init__(self, hidden_dim=256, num_queries=100, num_classes=80):
        super().__init__()
        self.num_classes = num_classes
        self.backbone = nn.Sequential(
            nn.Conv2D(3, 64, 7, 4, 3), nn.BatchNorm2D(64), nn.ReLU(),
            nn.Conv2D(64, hidden_dim, 3, 4, 1), nn.BatchNorm2D(hidden_dim), nn.ReLU())
        self.query = nn.Embedding(num_queries, hidden_dim)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(hidden_dim, 8, 1024), 3)
        self.score_head = nn.Linear(hidden_dim, num_classes)
        self.bbox_head = nn.Linear(hidden_dim, 4)

    def predict(self, image):
        feature = self.backbone(image).flatten(2).transpose([0, 2, 1])
        query = self.query.weight.unsqueeze(0).expand([image.shape[0], -1, -1])
        hidden = self.decoder(query, feature)
        return self.score_head(hidden), F.sigmoid(self.bbox_head(hidden))

    def forward(self, data):
        logits, boxes = self.predict(data["image"])
        loss_cls = F.binary_cross_entropy_with_logits(logits, data["score_target"])
        loss_bbox = F.l1_loss(boxes, data["bbox_target"])
        return {"loss": loss_cls + 5.0 * loss_bbox, "loss_cls": loss_cls, "loss_bbox": loss_bbox}

    def get_ssod_loss(self, student, teacher, threshold):
        scores = F.sigmoid(teacher[0])
        confident = (scores.max(axis=-1, keepdim=True) > threshold).astype("float32")
        loss_cls = (F.mse_loss(F.sigmoid(student[0]), scores, reduction="none") * confident).mean()
        loss_bbox = (F.l1_loss(student[1], teacher[1], reduction="none") * confident).mean()
        return {"distill_loss_cls": loss_cls, "distill_loss_bbox": loss_bbox}


@register
class LearningRate:
    def __init__(self, base_lr=0.0001, milestones=(40,), gamma=0.1):
        self.base_lr, self.milestones, self.gamma = base_lr, milestones, gamma

    def __call__(self, step_per_epoch):
        return optimizers.lr.MultiStepDecay(
            self.base_lr, [m * step_per_epoch for m in self.milestones], self.gamma)


@register
class OptimizerBuilder:
    def __init__(self,
                 clip_grad_by_norm=None,
                 clip_grad_by_value=None,
                 regularizer={"type": "L2", "factor": 0.0001},
                 optimizer={"type": "Momentum", "momentum": 0.9}):
        self.clip_grad_by_norm = clip_grad_by_norm
        self.clip_grad_by_value = clip_grad_by_value
        self.regularizer = regularizer
        self.optimizer = optimizer

    def __call__(self, learning_rate, model=None):
        if self.clip_grad_by_norm is not None:
            grad_clip = nn.ClipGradByGlobalNorm(clip_norm=self.clip_grad_by_norm)
        elif self.clip_grad_by_value is not None:
            var = abs(self.clip_grad_by_value)
            grad_clip = nn.ClipGradByValue(min=-var, max=var)
        else:
            grad_clip = None
        optim_args = self.optimizer.copy()
        optim_type = optim_args.pop("type")
        if optim_type != "AdamW" and self.regularizer:
            reg = getattr(regularizers, self.regularizer["type"] + "Decay")
            optim_args["weight_decay"] = reg(self.regularizer["factor"])
        op = getattr(optimizers, optim_type)
        params = [p for p in model.parameters() if p.trainable is True]
        return op(learning_rate=learning_rate, parameters=params, grad_clip=grad_clip, **optim_args)


@register
class SemiTrainReader:
    """Labelled and unlabelled batches, weakly and strongly augmented."""

    def __init__(self, sup_batch_size=2, unsup_batch_size=2, num_batches=1000):
        self.sizes, self.num_batches = (sup_batch_size, unsup_batch_size), num_batches

    def __len__(self):
        return self.num_batches

    def __iter__(self):
        sup, unsup = self.sizes
        for _ in range(self.num_batches):
            label = {"image": paddle.rand([sup, 3, 640, 640]),
                     "score_target": paddle.zeros([sup, 100, 80]),
                     "bbox_target": paddle.rand([sup, 100, 4])}
            weak = {"image": paddle.rand([unsup, 3, 640, 640])}
            yield label, weak, {"image": weak["image"] + 0.1}
