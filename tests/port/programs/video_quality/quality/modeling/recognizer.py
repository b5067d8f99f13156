"""A recognizer: frames through a backbone with shifts in time, then a head that scores them."""

import math

import paddle
import paddle.nn as nn
import paddle.nn.functional as F

BACKBONES = {}
HEADS = {}


def register(registry):
    def add(cls):
        registry[cls.__name__] = cls
        return cls

    return add


class ConvNormLayer(nn.Layer):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1, act=None):
        super().__init__()
        self.conv = nn.Conv2D(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=(kernel_size - 1) // 2,
            bias_attr=False,
        )
        self.norm = nn.BatchNorm2D(out_channels)
        self.act = act

    def forward(self, x):
        x = self.norm(self.conv(x))
        return getattr(F, self.act)(x) if self.act else x


class Bottleneck(nn.Layer):
    def __init__(self, in_channels, out_channels, stride, shortcut, num_seg):
        super().__init__()
        self.conv0 = ConvNormLayer(in_channels, out_channels, 1, act="relu")
        self.conv1 = ConvNormLayer(out_channels, out_channels, 3, stride=stride, act="relu")
        self.conv2 = ConvNormLayer(out_channels, out_channels * 4, 1)
        self.shortcut = shortcut
        if not shortcut:
            self.short = ConvNormLayer(in_channels, out_channels * 4, 1, stride=stride)
        self.num_seg = num_seg

    def forward(self, inputs):
        shifted = F.temporal_shift(inputs, self.num_seg, 1.0 / 8)
        y = self.conv2(self.conv1(self.conv0(shifted)))
        short = inputs if self.shortcut else self.short(inputs)
        return F.relu(y + short)


@register(BACKBONES)
class ResNetTSM(nn.Layer):
    DEPTHS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}

    def __init__(self, depth=50, num_seg=8):
        super().__init__()
        self.stem = ConvNormLayer(3, 64, 7, stride=2, act="relu")
        self.pool = nn.MaxPool2D(3, stride=2, padding=1)
        blocks, channels = [], 64
        for stage, count in enumerate(self.DEPTHS[depth]):
            width = 64 * 2**stage
            for i in range(count):
                stride = 2 if i == 0 and stage > 0 else 1
                blocks.append(Bottleneck(channels, width, stride, i > 0, num_seg))
                channels = 4 * width
        self.blocks = nn.LayerList(blocks)

    def forward(self, x):
        x = self.pool(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return x


@register(HEADS)
class RegressionHead(nn.Layer):
    def __init__(self, in_channels=2048, drop_ratio=0.5):
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2D(1)
        self.dropout = nn.Dropout(drop_ratio)
        bound = 1.0 / math.sqrt(in_channels)
        weight = paddle.ParamAttr(initializer=nn.initializer.Uniform(-bound, bound))
        self.fc = nn.Linear(in_channels, 1, weight_attr=weight)

    def forward(self, x, num_seg):
        x = self.dropout(self.pool(x)).reshape([-1, num_seg, x.shape[1]])
        return self.fc(paddle.mean(x, axis=1))

    def loss(self, scores, labels):
        return F.smooth_l1_loss(scores.flatten(), labels.astype("float32").flatten())


class Recognizer2D(nn.Layer):
    def __init__(self, backbone, head, num_seg):
        super().__init__()
        self.backbone, self.head, self.num_seg = backbone, head, num_seg

    def extract(self, imgs):
        return self.backbone(imgs.reshape([-1] + imgs.shape[2:]))

    def train_step(self, data_batch):
        scores = self.head(self.extract(data_batch[0]), self.num_seg)
        return {"loss": self.head.loss(scores, data_batch[1])}

    def val_step(self, data_batch):
        scores = self.head(self.extract(data_batch[0]), self.num_seg)
        return {"quality": scores.astype("float32")}

    def forward(self, data_batch, mode="infer"):
        if mode == "train":
            return self.train_step(data_batch)
        return self.val_step(data_batch)


def build_model(cfg):
    backbone = BACKBONES[cfg.backbone.name](cfg.backbone.depth, cfg.num_seg)
    head = HEADS[cfg.head.name](drop_ratio=cfg.head.get("drop_ratio", 0.5))
    return Recognizer2D(backbone, head, cfg.num_seg)
