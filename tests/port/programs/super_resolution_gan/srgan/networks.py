"""Generator, discriminator, losses."""

import paddle
import paddle.nn as nn
import paddle.nn.functional as F

from .config import CRITERIONS, NETWORKS


class ResidualDenseBlock(nn.Layer):
    def __init__(self, nf=64, gc=32):
        super().__init__()
        self.convs = nn.LayerList([nn.Conv2D(nf + i * gc, gc if i < 4 else nf, 3, 1, 1) for i in range(5)])
        self.lrelu = nn.LeakyReLU(negative_slope=0.2)

    def forward(self, x):
        features = [x]
        for conv in self.convs[:-1]:
            features.append(self.lrelu(conv(paddle.concat(features, 1))))
        return self.convs[-1](paddle.concat(features, 1)) * 0.2 + x


@NETWORKS.register()
class RRDBNet(nn.Layer):
    def __init__(self, in_nc, out_nc, nf, nb, gc=32):
        super().__init__()
        self.conv_first = nn.Conv2D(in_nc, nf, 3, 1, 1)
        self.trunk = nn.Sequential(*[ResidualDenseBlock(nf, gc) for _ in range(nb)])
        self.upconv1 = nn.Conv2D(nf, nf, 3, 1, 1)
        self.upconv2 = nn.Conv2D(nf, nf, 3, 1, 1)
        self.conv_last = nn.Conv2D(nf, out_nc, 3, 1, 1)

    def forward(self, x):
        fea = self.conv_first(x)
        fea = fea + self.trunk(fea)
        fea = F.leaky_relu(self.upconv1(F.interpolate(fea, scale_factor=2, mode="nearest")), 0.2)
        fea = F.leaky_relu(self.upconv2(F.interpolate(fea, scale_factor=2, mode="nearest")), 0.2)
        return self.conv_last(fea)


@NETWORKS.register()
class VGGDiscriminator128(nn.Layer):
    def __init__(self, in_channels, num_feat):
        super().__init__()
        layers, width = [nn.Conv2D(in_channels, num_feat, 3, 1, 1), nn.LeakyReLU(0.2)], num_feat
        for i in range(4):
            out = min(num_feat * 2 ** (i + 1), 512)
            layers += [nn.Conv2D(width, out, 4, 2, 1, bias_attr=False), nn.BatchNorm2D(out), nn.LeakyReLU(0.2)]
            width = out
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(width * 8 * 8, 100), nn.LeakyReLU(0.2), nn.Linear(100, 1))

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


@CRITERIONS.register()
class L1Loss(nn.Layer):
    def __init__(self, loss_weight=1.0):
        super().__init__()
        self.loss_weight = loss_weight

    def forward(self, pred, target):
        return self.loss_weight * F.l1_loss(pred, target)


@CRITERIONS.register()
class GANLoss(nn.Layer):
    def __init__(self, gan_mode, loss_weight=1.0):
        super().__init__()
        assert gan_mode == "vanilla"
        self.loss_weight = loss_weight

    def forward(self, prediction, target_is_real, is_disc=False):
        target = paddle.full_like(prediction, 1.0 if target_is_real else 0.0)
        loss = F.binary_cross_entropy_with_logits(prediction, target)
        return loss if is_disc else self.loss_weight * loss
