import paddle
import paddle.nn as nn
import paddle.nn.functional as F

from seg.cvlibs import manager


class ConvBNReLU(nn.Layer):
    def __init__(self, in_channels, out_channels, kernel_size=3, stride=1):
        super().__init__()
        self._conv = nn.Conv2D(
            in_channels, out_channels, kernel_size, stride=stride, padding=kernel_size // 2,
            bias_attr=False)
        self._batch_norm = nn.BatchNorm2D(out_channels)

    def forward(self, x):
        return F.relu(self._batch_norm(self._conv(x)))


class UnifiedAttention(nn.Layer):
    """What is coarse and what is fine, weighed by both."""

    def __init__(self, channels):
        super().__init__()
        self.weigh = nn.Sequential(ConvBNReLU(2 * channels, channels // 2), nn.Conv2D(channels // 2, 1, 3, padding=1))
        self.out = ConvBNReLU(channels, channels)

    def forward(self, fine, coarse):
        coarse = F.interpolate(coarse, fine.shape[2:], mode='bilinear')
        alpha = F.sigmoid(self.weigh(paddle.concat([fine, coarse], 1)))
        return self.out(alpha * fine + (1 - alpha) * coarse)


@manager.MODELS.add_component
class LiteSeg(nn.Layer):
    def __init__(self, num_classes, widths, out_channels=128, data_format='NCHW'):
        super().__init__()
        self.data_format = data_format
        channels = [3, *widths]
        self.stages = nn.LayerList([
            nn.Sequential(ConvBNReLU(a, b, stride=2), ConvBNReLU(b, b))
            for a, b in zip(channels, channels[1:])
        ])
        self.lateral = nn.LayerList([ConvBNReLU(width, out_channels, 1) for width in widths[1:]])
        self.context = nn.Sequential(nn.AdaptiveAvgPool2D(1), ConvBNReLU(widths[-1], out_channels, 1))
        self.fusions = nn.LayerList([UnifiedAttention(out_channels) for _ in widths[1:]])
        self.head = nn.Conv2D(out_channels, num_classes, 1)
        self.aux = nn.Conv2D(out_channels, num_classes, 1)

    def forward(self, x):
        size, features = x.shape[2:], []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        y = self.context(x)
        middle = None
        for lateral, fusion, feature in reversed(list(zip(self.lateral, self.fusions, features[1:]))):
            y = fusion(lateral(feature), y)
            middle = y if middle is None else middle
        logits = [self.head(y), self.aux(middle)] if self.training else [self.head(y)]
        return [F.interpolate(each, size, mode='bilinear') for each in logits]
