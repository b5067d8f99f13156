import math

import paddle
import paddle.nn as nn
import paddle.nn.functional as F

SIZES = {"350m": (24, 1024, 16), "1b": (24, 2048, 16), "7b": (32, 4096, 32)}


class Attention(nn.Layer):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads, self.head_dim = heads, hidden // heads
        self.qkv = nn.Linear(hidden, 3 * hidden, bias_attr=False)
        self.out = nn.Linear(hidden, hidden, bias_attr=False)

    def forward(self, x):
        batch, length, hidden = x.shape
        qkv = self.qkv(x).reshape([batch, length, 3, self.heads, self.head_dim])
        q, k, v = (part.squeeze(2) for part in paddle.split(qkv, 3, axis=2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(attended.reshape([batch, length, hidden]))


class Block(nn.Layer):
    def __init__(self, hidden, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class CausalLM(nn.Layer):
    def __init__(self, size, vocab_size, max_length):
        super().__init__()
        depth, hidden, heads = SIZES[size]
        self.tokens = nn.Embedding(vocab_size, hidden)
        self.places = nn.Embedding(max_length, hidden)
        self.blocks = nn.LayerList([Block(hidden, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocab_size, bias_attr=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(paddle.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def flops_per_token(self, length):
        parameters = sum(math.prod(p.shape) for p in self.parameters())
        return 6 * parameters + 12 * len(self.blocks) * self.tokens.weight.shape[1] * length
