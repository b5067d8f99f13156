import torch
from torch import nn


class VisionTransformer(nn.Module):
    def __init__(self, num_classes, embed_dim, depth, patch=16, image=224):
        super().__init__()
        self.patches = nn.Conv2d(3, embed_dim, patch, stride=patch)
        self.position = nn.Parameter(torch.zeros(1, (image // patch) ** 2, embed_dim))
        layer = nn.TransformerEncoderLayer(
            embed_dim, embed_dim // 64, 4 * embed_dim, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, depth)
        self.norm = nn.LayerNorm(embed_dim)
        self.head = nn.Linear(embed_dim, num_classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.norm(self.blocks(x)).mean(dim=1))
