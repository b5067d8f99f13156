from paddle import nn


class DepthwiseNet(nn.Layer):
    """Depthwise separable convolutions over a log-mel spectrogram."""

    def __init__(self, classes, width, blocks):
        super().__init__()
        layers = [nn.Conv2D(1, width, 3, padding=1), nn.BatchNorm2D(width), nn.ReLU()]
        for _ in range(blocks):
            layers += [
                nn.Conv2D(width, width, 3, padding=1, groups=width),
                nn.Conv2D(width, width, 1),
                nn.BatchNorm2D(width),
                nn.ReLU(),
            ]
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2D(1)
        self.classifier = nn.Linear(width, classes)

    def forward(self, mel):
        return self.classifier(self.pool(self.features(mel)).flatten(1))
