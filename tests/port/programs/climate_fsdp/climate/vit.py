import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, dim, heads, drop):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        batch, length, dim = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, length, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v)
        x = x + self.drop(self.proj(attended.transpose(1, 2).reshape(batch, length, dim)))
        return x + self.drop(self.mlp(self.norm2(x)))


class ClimateViT(nn.Module):
    """Fields of the atmosphere at one time, from those some hours before."""

    def __init__(self, in_variables, img_size, patch_size, embed_dim, depth, num_heads, drop_rate):
        super().__init__()
        channels = len(in_variables)
        self.patch_size, self.img_size = patch_size, img_size
        self.embed = nn.Conv2d(channels, embed_dim, patch_size, patch_size)
        count = img_size[0] // patch_size * (img_size[1] // patch_size)
        self.position = nn.Parameter(torch.zeros(1, count, embed_dim))
        self.blocks = nn.ModuleList([Block(embed_dim, num_heads, drop_rate) for _ in range(depth)])
        self.norm = nn.LayerNorm(embed_dim)
        self.head = nn.Linear(embed_dim, channels * patch_size**2)

    def forward(self, x, y, weights):
        h = self.embed(x).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            h = block(h)
        h = self.head(self.norm(h)).transpose(1, 2)
        rows, columns = (side // self.patch_size for side in self.img_size)
        h = F.pixel_shuffle(h.reshape(len(x), -1, rows, columns), self.patch_size)
        return ((h - y).square() * weights.view(1, 1, -1, 1)).mean(), h
