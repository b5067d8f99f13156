import paddle
from paddle import nn
from paddle.nn import functional as F


class LlamaRMSNorm(nn.Layer):
    def __init__(self, width, epsilon=1e-6):
        super().__init__()
        self.weight = self.create_parameter([width], default_initializer=nn.initializer.Constant(1))
        self.epsilon = epsilon

    def forward(self, x):
        return x * paddle.rsqrt((x * x).mean(-1, keepdim=True) + self.epsilon) * self.weight


class Block(nn.Layer):
    def __init__(self, config):
        super().__init__()
        width = config.hidden_size
        self.heads = config.num_attention_heads
        self.norm_1 = LlamaRMSNorm(width)
        self.norm_2 = LlamaRMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias_attr=False)
        self.out = nn.Linear(width, width, bias_attr=False)
        self.gate_up = nn.Linear(width, 2 * config.intermediate_size, bias_attr=False)
        self.down = nn.Linear(config.intermediate_size, width, bias_attr=False)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm_1(x)).reshape([batch, length, 3, self.heads, -1])
        q, k, v = qkv.unbind(axis=2)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.reshape([batch, length, width]))
        gate, up = self.gate_up(self.norm_2(x)).chunk(2, axis=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Layer):
    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.LayerList([Block(config) for _ in range(config.num_hidden_layers)])
        self.norm = LlamaRMSNorm(config.hidden_size)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias_attr=False)

    def forward(self, tokens):
        x = self.embed(tokens[:, :-1])
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)), tokens[:, 1:])


def random_tokens(config):
    shape = [config.per_device_train_batch_size, config.max_seq_length + 1]
    while True:
        yield paddle.randint(0, config.vocab_size, shape)
