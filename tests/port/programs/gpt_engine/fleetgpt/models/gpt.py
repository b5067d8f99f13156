import paddle
import paddle.nn as nn
import paddle.nn.functional as F


class DecoderLayer(nn.Layer):
    def __init__(self, hidden_size, heads, ffn_size, dropout):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden_size), nn.LayerNorm(hidden_size)
        self.qkv_proj = nn.Linear(hidden_size, 3 * hidden_size)
        self.out_proj = nn.Linear(hidden_size, hidden_size)
        self.linear1, self.linear2 = nn.Linear(hidden_size, ffn_size), nn.Linear(ffn_size, hidden_size)
        self.dropout = nn.Dropout(dropout, mode="upscale_in_train")

    def attention(self, x, mask):
        batch, length, size = x.shape
        qkv = self.qkv_proj(x).reshape([batch, length, self.heads, 3 * size // self.heads])
        q, k, v = paddle.split(qkv.transpose([0, 2, 1, 3]), 3, axis=-1)
        product = paddle.matmul(q * q.shape[-1] ** -0.5, k, transpose_y=True)
        weights = F.softmax(product + mask)
        out = paddle.matmul(self.dropout(weights), v).transpose([0, 2, 1, 3])
        return self.out_proj(out.reshape([batch, length, size]))

    def forward(self, x, mask):
        x = x + self.dropout(self.attention(self.norm1(x), mask))
        hidden = self.linear2(F.gelu(self.linear1(self.norm2(x)), approximate=True))
        return x + self.dropout(hidden)


class GPTForPretraining(nn.Layer):
    def __init__(
        self,
        vocab_size,
        hidden_size,
        num_layers,
        num_attention_heads,
        ffn_hidden_size,
        max_position_embeddings,
        hidden_dropout_prob,
    ):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, hidden_size)
        self.position_embeddings = nn.Embedding(max_position_embeddings, hidden_size)
        self.dropout = nn.Dropout(hidden_dropout_prob)
        self.layers = nn.LayerList(
            [
                DecoderLayer(hidden_size, num_attention_heads, ffn_hidden_size, hidden_dropout_prob)
                for _ in range(num_layers)
            ]
        )
        self.norm = nn.LayerNorm(hidden_size)

    def forward(self, input_ids, position_ids):
        x = self.word_embeddings(input_ids) + self.position_embeddings(position_ids)
        x = self.dropout(x)
        length = input_ids.shape[1]
        future = paddle.triu(paddle.ones([length, length]), diagonal=1)
        mask = (future * -1e4).astype(x.dtype)
        for layer in self.layers:
            x = layer(x, mask)
        return paddle.matmul(self.norm(x), self.word_embeddings.weight, transpose_y=True)


class GPTPretrainingCriterion(nn.Layer):
    def __init__(self):
        super().__init__()
        self.loss_func = nn.CrossEntropyLoss(reduction="none")

    def forward(self, prediction_scores, masked_lm_labels, loss_mask):
        losses = self.loss_func(prediction_scores, masked_lm_labels.unsqueeze(2))
        loss_mask = loss_mask.reshape([-1])
        total = paddle.sum(losses.reshape([-1]) * loss_mask)
        return total / loss_mask.sum()
