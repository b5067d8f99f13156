"""A detector of one box from one camera."""

from paddle import nn

from det3d.config import add_component


@add_component
class PETR(nn.Layer):
    def __init__(self, embed_dims=64, num_layers=2):
        super().__init__()
        self.backbone = nn.Conv2D(3, embed_dims, 16, stride=16)
        layer = nn.TransformerEncoderLayer(embed_dims, 8, 4 * embed_dims)
        self.transformer = nn.TransformerEncoder(layer, num_layers)
        self.regress = nn.Linear(embed_dims, 9)
        self.criterion = nn.SmoothL1Loss()

    def forward(self, sample):
        tokens = self.backbone(sample["images"]).flatten(2).transpose([0, 2, 1])
        boxes = self.regress(self.transformer(tokens).mean(axis=1))
        return {"loss": self.criterion(boxes, sample["boxes"]), "boxes": boxes}
