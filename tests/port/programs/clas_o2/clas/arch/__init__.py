import copy

import paddle.nn as nn
import paddle.nn.functional as F


class Unit(nn.Layer):
    def __init__(self, inputs, width, stride, data_format):
        super().__init__()
        args = {"bias_attr": False, "data_format": data_format}
        self.convs = nn.LayerList(
            [
                nn.Conv2D(inputs, width, 1, **args),
                nn.Conv2D(width, width, 3, stride=stride, padding=1, **args),
                nn.Conv2D(width, 4 * width, 1, **args),
            ]
        )
        self.norms = nn.LayerList(
            [nn.BatchNorm2D(c, data_format=data_format) for c in (width, width, 4 * width)]
        )
        self.short = None
        if stride > 1 or inputs != 4 * width:
            self.short = nn.Conv2D(inputs, 4 * width, 1, stride=stride, **args)

    def forward(self, x):
        y = x
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms)):
            y = norm(conv(y))
            y = F.relu(y) if i < 2 else y
        return F.relu(y + (x if self.short is None else self.short(x)))


class ResNet50(nn.Layer):
    def __init__(self, class_num=1000, input_image_channel=3, data_format="NCHW"):
        super().__init__()
        self.stem = nn.Conv2D(
            input_image_channel, 64, 7, stride=2, padding=3, data_format=data_format
        )
        self.pool = nn.MaxPool2D(3, stride=2, padding=1, data_format=data_format)
        units, channels = [], 64
        for stage, count in enumerate((3, 4, 6, 3)):
            for i in range(count):
                stride = 2 if i == 0 and stage > 0 else 1
                units.append(Unit(channels, 64 * 2**stage, stride, data_format))
                channels = 256 * 2**stage
        self.units = nn.Sequential(*units)
        self.average = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.fc = nn.Linear(channels, class_num)

    def forward(self, x):
        x = self.units(self.pool(self.stem(x)))
        return self.fc(self.average(x).flatten(1))


def build_model(config):
    arch_config = copy.deepcopy(config)
    model_type = arch_config.pop("name")
    return {"ResNet50": ResNet50}[model_type](**arch_config)
