import paddle
import paddle.nn as nn
import paddle.nn.functional as F


class RMSNorm(nn.Layer):
    def __init__(self, dim, eps):
        super().__init__()
        self.eps = eps
        self.weight = self.create_parameter([dim], default_initializer=nn.initializer.Constant(1.0))

    def forward(self, x):
        wide = x.astype("float32")
        normed = wide * paddle.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.weight * normed).astype(x.dtype)


def rope_angles(dim, end, theta):
    freqs = 1.0 / theta ** (paddle.arange(0, dim, 2, dtype="float32") / dim)
    angles = paddle.outer(paddle.arange(end, dtype="float32"), freqs)
    return paddle.cos(angles), paddle.sin(angles)


def rotate(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    cos, sin = cos[: x.shape[1], None, :], sin[: x.shape[1], None, :]
    return paddle.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


class Attention(nn.Layer):
    def __init__(self, args):
        super().__init__()
        self.heads, self.kv_heads = args.n_heads, args.n_kv_heads
        self.head_dim = args.dim // args.n_heads
        self.wq = nn.Linear(args.dim, self.heads * self.head_dim, bias_attr=False)
        self.wkv = nn.Linear(args.dim, 2 * self.kv_heads * self.head_dim, bias_attr=False)
        self.wo = nn.Linear(args.dim, args.dim, bias_attr=False)

    def forward(self, x, cos, sin):
        batch, length, dim = x.shape
        q = self.wq(x).reshape([batch, length, self.heads, self.head_dim])
        k, v = self.wkv(x).reshape([batch, length, 2 * self.kv_heads, self.head_dim]).chunk(2, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        times = self.heads // self.kv_heads
        k, v = k.repeat_interleave(times, 2), v.repeat_interleave(times, 2)
        out = F.scaled_dot_product_attention(q, k.astype(q.dtype), v.astype(q.dtype), is_causal=True)
        return self.wo(out.reshape([batch, length, dim]))


class MiniLM(nn.Layer):
    def __init__(self, args):
        super().__init__()
        self.tok_embeddings = nn.Embedding(args.vocab_size, args.dim)
        self.attention = nn.LayerList([Attention(args) for _ in range(args.n_layers)])
        self.norms = nn.LayerList([RMSNorm(args.dim, args.norm_eps) for _ in range(2 * args.n_layers)])
        self.up = nn.LayerList([nn.Linear(args.dim, 4 * args.dim) for _ in range(args.n_layers)])
        self.down = nn.LayerList([nn.Linear(4 * args.dim, args.dim) for _ in range(args.n_layers)])
        self.norm = RMSNorm(args.dim, args.norm_eps)
        self.output = nn.Linear(args.dim, args.vocab_size, bias_attr=False)
        self.cos, self.sin = rope_angles(
            args.dim // args.n_heads, args.max_seq_len, args.rope_theta
        )

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        for i, attention in enumerate(self.attention):
            h = h + attention(self.norms[2 * i](h), self.cos, self.sin)
            h = h + self.down[i](F.silu(self.up[i](self.norms[2 * i + 1](h))))
        return self.output(self.norm(h))
