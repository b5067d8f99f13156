import paddle
import paddle.nn as nn
import paddle.nn.functional as F


class Backbone(nn.Layer):
    def __init__(self, widths=(64, 128, 256)):
        super().__init__()
        channels = (3, *widths)
        self.convs = nn.LayerList(
            [nn.Conv2D(a, b, 3, stride=2, padding=1) for a, b in zip(channels, channels[1:])]
        )
        self.norms = nn.LayerList([nn.BatchNorm2D(width) for width in widths])

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms):
            x = F.relu(norm(conv(x)))
        return x


class Mask2Former(nn.Layer):
    def __init__(self, num_classes, num_queries, hidden=256, layers=6):
        super().__init__()
        self.backbone = Backbone()
        self.queries = nn.Embedding(num_queries, hidden)
        layer = nn.TransformerDecoderLayer(hidden, 8, 2048)
        self.decoder = nn.TransformerDecoder(layer, layers)
        self.classes = nn.Linear(hidden, num_classes + 1)
        self.mask_embed = nn.Linear(hidden, hidden)

    def forward(self, images):
        features = self.backbone(images)
        memory = features.flatten(2).transpose([0, 2, 1])
        queries = self.queries.weight.unsqueeze(0).tile([images.shape[0], 1, 1])
        decoded = self.decoder(queries, memory)
        masks = paddle.einsum("bqc,bchw->bqhw", self.mask_embed(decoded), features)
        masks = F.interpolate(masks, size=images.shape[2:], mode="bilinear")
        return {"logits": self.classes(decoded), "masks": masks}


class SetCriterion(nn.Layer):
    def __init__(self, coefficients):
        super().__init__()
        self.coefficients = coefficients

    def forward(self, outputs, data):
        masks = outputs["masks"].astype("float32")
        probability = F.sigmoid(masks)
        overlap = (probability * data["masks"]).sum([2, 3])
        size = probability.sum([2, 3]) + data["masks"].sum([2, 3])
        losses = {
            "class": F.cross_entropy(outputs["logits"].flatten(0, 1), data["classes"].flatten()),
            "mask": F.binary_cross_entropy_with_logits(masks, data["masks"]),
            "dice": (1 - (2 * overlap + 1) / (size + 1)).mean(),
        }
        return {name: self.coefficients[name] * value for name, value in losses.items()}


def build_model(cfg):
    cfg = {k: v for k, v in cfg.items() if k not in ("type", "backbone")}
    return Mask2Former(**cfg)


def build_loss(cfg):
    return SetCriterion(cfg["coefficients"])
