import paddle.nn as nn


class ConvBlock(nn.Layer):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv = nn.Conv2D(inputs, outputs, 3, stride=stride, padding=1, bias_attr=False)
        self.norm = nn.BatchNorm2D(outputs)

    def forward(self, x):
        return nn.functional.gelu(self.norm(self.conv(x)))


class RecModel(nn.Layer):
    """Columns of a line of text, each with its scores of characters."""

    def __init__(self, dims, out_channels):
        super().__init__()
        widths = [3, *dims]
        blocks = [ConvBlock(a, b, (2, 1)) for a, b in zip(widths, widths[1:])]
        self.backbone = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2D((1, 40))
        self.head = nn.Linear(dims[-1], out_channels)

    def forward(self, images):
        features = self.pool(self.backbone(images)).squeeze(2)
        return self.head(features.transpose([0, 2, 1]))


def build_model(config):
    return RecModel(config["Backbone"]["dims"], config["Head"]["out_channels"])
