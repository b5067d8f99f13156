"""A teacher and a student, in whichever program is guarded."""

import paddle
import paddle.nn as nn
import paddle.nn.functional as F


def conv_bn(x, channels, kernel, stride, groups, trainable):
    attr = paddle.ParamAttr(trainable=trainable)
    conv = nn.Conv2D(
        x.shape[1], channels, kernel, stride, padding=kernel // 2, groups=groups, weight_attr=attr, bias_attr=False)
    norm = nn.BatchNorm2D(channels, weight_attr=attr, bias_attr=paddle.ParamAttr(trainable=trainable))
    return F.relu(norm(conv(x)))


def mobilenet(image, num_classes, scale, trainable):
    x = conv_bn(image, int(32 * scale), 3, 2, 1, trainable)
    for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2), (1024, 2)):
        width = x.shape[1]
        x = conv_bn(x, width, 3, stride, width, trainable)
        x = conv_bn(x, int(channels * scale), 1, 1, 1, trainable)
    x = F.adaptive_avg_pool2d(x, 1).flatten(1)
    attr = paddle.ParamAttr(trainable=trainable)
    return nn.Linear(x.shape[1], num_classes, weight_attr=attr, bias_attr=paddle.ParamAttr(trainable=trainable))(x)


def teacher_net(image, num_classes):
    with paddle.utils.unique_name.guard("teacher_"):
        return mobilenet(image, num_classes, 2.0, trainable=False)


def student_net(image, num_classes):
    return mobilenet(image, num_classes, 0.5, trainable=True)
