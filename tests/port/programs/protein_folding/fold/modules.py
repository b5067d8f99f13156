"""The trunk: attention over the rows and columns of an alignment, and over pairs of residues."""

import paddle
import paddle.nn as nn
import paddle.nn.functional as F


def init_gate_linear(linear):
    nn.initializer.Constant(0.0)(linear.weight)
    nn.initializer.Constant(1.0)(linear.bias)


def init_final_linear(linear, zero_init):
    if zero_init:
        nn.initializer.Constant(0.0)(linear.weight)


class Attention(nn.Layer):
    """Multihead attention with a gate, and a bias of the pairs."""

    def __init__(self, channels, heads, output_channels, zero_init=True):
        super().__init__()
        self.heads = heads
        self.head_dim = channels // heads
        self.q = nn.Linear(channels, channels, bias_attr=False)
        self.k = nn.Linear(channels, channels, bias_attr=False)
        self.v = nn.Linear(channels, channels, bias_attr=False)
        self.gate = nn.Linear(channels, channels)
        self.out = nn.Linear(channels, output_channels)
        init_gate_linear(self.gate)
        init_final_linear(self.out, zero_init)

    def split_heads(self, x):
        return x.reshape([*x.shape[:-1], self.heads, self.head_dim])

    def forward(self, data, mask, nonbatched_bias=None):
        q = self.split_heads(self.q(data)) * self.head_dim**-0.5
        k, v = self.split_heads(self.k(data)), self.split_heads(self.v(data))
        logits = paddle.einsum("nbqhc,nbkhc->nbhqk", q, k)
        logits = logits + 1e9 * (mask.astype(logits.dtype) - 1.0).unsqueeze([2, 3])
        if nonbatched_bias is not None:
            logits = logits + nonbatched_bias.unsqueeze(1)
        weights = F.softmax(logits)
        weighted = paddle.einsum("nbhqk,nbkhc->nbqhc", weights, v)
        gate = F.sigmoid(self.gate(data))
        return self.out(weighted.reshape(data.shape) * gate)


class MSARowAttentionWithPairBias(nn.Layer):
    def __init__(self, config, zero_init):
        super().__init__()
        self.query_norm = nn.LayerNorm(config.msa_channel)
        self.pair_norm = nn.LayerNorm(config.pair_channel)
        self.pair_bias = nn.Linear(config.pair_channel, config.msa_heads, bias_attr=False)
        self.attention = Attention(
            config.msa_channel, config.msa_heads, config.msa_channel, zero_init
        )

    def forward(self, msa, msa_mask, pair):
        bias = self.pair_bias(self.pair_norm(pair)).transpose([0, 3, 1, 2])
        return self.attention(self.query_norm(msa), msa_mask, bias)


class MSAColumnAttention(nn.Layer):
    def __init__(self, config, zero_init):
        super().__init__()
        self.query_norm = nn.LayerNorm(config.msa_channel)
        self.attention = Attention(
            config.msa_channel, config.msa_heads, config.msa_channel, zero_init
        )

    def forward(self, msa, msa_mask):
        msa, mask = msa.transpose([0, 2, 1, 3]), msa_mask.transpose([0, 2, 1])
        return self.attention(self.query_norm(msa), mask).transpose([0, 2, 1, 3])


class TriangleAttention(nn.Layer):
    def __init__(self, config, per_row, zero_init):
        super().__init__()
        self.per_row = per_row
        self.norm = nn.LayerNorm(config.pair_channel)
        self.bias = nn.Linear(config.pair_channel, config.pair_heads, bias_attr=False)
        self.attention = Attention(
            config.pair_channel, config.pair_heads, config.pair_channel, zero_init
        )

    def forward(self, pair, pair_mask):
        if not self.per_row:
            pair, pair_mask = pair.transpose([0, 2, 1, 3]), pair_mask.transpose([0, 2, 1])
        pair = self.norm(pair)
        out = self.attention(pair, pair_mask, self.bias(pair).transpose([0, 3, 1, 2]))
        return out if self.per_row else out.transpose([0, 2, 1, 3])


class TriangleMultiplication(nn.Layer):
    def __init__(self, config, outgoing, zero_init):
        super().__init__()
        channels = config.pair_channel
        self.equation = "bikc,bjkc->bijc" if outgoing else "bkjc,bkic->bijc"
        self.norm_in, self.norm_out = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.left, self.right = nn.Linear(channels, channels), nn.Linear(channels, channels)
        self.left_gate, self.right_gate = nn.Linear(channels, channels), nn.Linear(channels, channels)
        self.out, self.gate = nn.Linear(channels, channels), nn.Linear(channels, channels)
        for gate in (self.left_gate, self.right_gate, self.gate):
            init_gate_linear(gate)
        init_final_linear(self.out, zero_init)

    def forward(self, pair, pair_mask):
        mask = pair_mask.unsqueeze(-1)
        pair = self.norm_in(pair)
        left = mask * self.left(pair) * F.sigmoid(self.left_gate(pair))
        right = mask * self.right(pair) * F.sigmoid(self.right_gate(pair))
        product = paddle.einsum(self.equation, left, right)
        return self.out(self.norm_out(product)) * F.sigmoid(self.gate(pair))


class Transition(nn.Layer):
    def __init__(self, channels, factor, zero_init):
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.up, self.down = nn.Linear(channels, factor * channels), nn.Linear(factor * channels, channels)
        init_final_linear(self.down, zero_init)

    def forward(self, x):
        return self.down(F.relu(self.up(self.norm(x))))


class OuterProductMean(nn.Layer):
    def __init__(self, config, zero_init, inner=32):
        super().__init__()
        self.norm = nn.LayerNorm(config.msa_channel)
        self.left, self.right = (nn.Linear(config.msa_channel, inner) for _ in range(2))
        self.out = nn.Linear(inner * inner, config.pair_channel)
        init_final_linear(self.out, zero_init)

    def forward(self, msa, msa_mask):
        mask = msa_mask.unsqueeze(-1)
        msa = self.norm(msa)
        left, right = mask * self.left(msa), mask * self.right(msa)
        outer = paddle.einsum("bsic,bsjd->bijcd", left, right).flatten(3)
        count = paddle.einsum("bsic,bsjc->bijc", mask, mask)
        return self.out(outer) / (1e-3 + count)


class EvoformerIteration(nn.Layer):
    def __init__(self, config, global_config):
        super().__init__()
        zero_init = global_config.zero_init
        self.row = MSARowAttentionWithPairBias(config, zero_init)
        self.column = MSAColumnAttention(config, zero_init)
        self.msa_transition = Transition(config.msa_channel, config.transition_factor, zero_init)
        self.outer = OuterProductMean(config, zero_init)
        self.outgoing = TriangleMultiplication(config, True, zero_init)
        self.incoming = TriangleMultiplication(config, False, zero_init)
        self.starting = TriangleAttention(config, True, zero_init)
        self.ending = TriangleAttention(config, False, zero_init)
        self.pair_transition = Transition(config.pair_channel, config.transition_factor, zero_init)
        self.dropout = nn.Dropout(config.dropout_rate)

    def forward(self, msa, pair, masks):
        msa = msa + self.dropout(self.row(msa, masks["msa"], pair))
        msa = msa + self.column(msa, masks["msa"])
        msa = msa + self.msa_transition(msa)
        pair = pair + self.outer(msa, masks["msa"])
        pair = pair + self.dropout(self.outgoing(pair, masks["pair"]))
        pair = pair + self.dropout(self.incoming(pair, masks["pair"]))
        pair = pair + self.dropout(self.starting(pair, masks["pair"]))
        pair = pair + self.dropout(self.ending(pair, masks["pair"]))
        return msa, pair + self.pair_transition(pair)


class EmbeddingsAndEvoformer(nn.Layer):
    def __init__(self, common, config, global_config):
        super().__init__()
        self.config = config
        self.left = nn.Linear(common.num_features, config.pair_channel)
        self.right = nn.Linear(common.num_features, config.pair_channel)
        self.target_msa = nn.Linear(common.num_features, config.msa_channel)
        self.msa = nn.Linear(common.msa_features, config.msa_channel)
        self.relative = nn.Embedding(2 * config.max_relative_feature + 1, config.pair_channel)
        self.prev_pair_norm = nn.LayerNorm(config.pair_channel)
        self.prev_msa_norm = nn.LayerNorm(config.msa_channel)
        self.blocks = nn.LayerList(
            [EvoformerIteration(config, global_config) for _ in range(config.evoformer_num_block)]
        )
        self.single = nn.Linear(config.msa_channel, config.seq_channel)

    def forward(self, batch, prev):
        target = batch["target_feat"]
        msa = self.msa(batch["msa_feat"]) + self.target_msa(target).unsqueeze(1)
        pair = self.left(target).unsqueeze(2) + self.right(target).unsqueeze(1)
        index = batch["residue_index"]
        offset = index.unsqueeze(-1) - index.unsqueeze(-2)
        limit = self.config.max_relative_feature
        pair = pair + self.relative(paddle.clip(offset + limit, 0, 2 * limit).astype("int64"))
        if self.config.recycle_features and prev is not None:
            pair = pair + self.prev_pair_norm(prev["pair"])
            msa = paddle.concat(
                [(msa[:, 0] + self.prev_msa_norm(prev["msa_first_row"])).unsqueeze(1), msa[:, 1:]], 1
            )
        mask = batch["seq_mask"]
        masks = {"msa": batch["msa_mask"], "pair": mask.unsqueeze(-1) * mask.unsqueeze(-2)}
        for block in self.blocks:
            msa, pair = block(msa, pair, masks)
        return {
            "single": self.single(msa[:, 0]),
            "pair": pair,
            "msa": msa,
            "msa_first_row": msa[:, 0],
        }
