"""An encoder with the two tasks of pretraining."""

import paddle
import paddle.nn as nn
import paddle.nn.functional as F


class ErnieModel(nn.Layer):
    def __init__(self, vocab_size=40000, hidden_size=768, num_layers=12, num_heads=12, max_positions=512):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, hidden_size)
        self.position_embeddings = nn.Embedding(max_positions, hidden_size)
        self.token_type_embeddings = nn.Embedding(4, hidden_size)
        self.layer_norm = nn.LayerNorm(hidden_size)
        layer = nn.TransformerEncoderLayer(hidden_size, num_heads, 4 * hidden_size, 0.1, "gelu")
        self.encoder = nn.TransformerEncoder(layer, num_layers)
        self.pooler = nn.Sequential(nn.Linear(hidden_size, hidden_size), nn.Tanh())

    def forward(self, input_ids, token_type_ids, attention_mask):
        positions = paddle.arange(input_ids.shape[1]).unsqueeze(0)
        x = self.word_embeddings(input_ids) + self.position_embeddings(positions)
        x = self.layer_norm(x + self.token_type_embeddings(token_type_ids))
        mask = (1.0 - attention_mask.unsqueeze([1, 2]).astype(x.dtype)) * -1e4
        x = self.encoder(x, mask)
        return x, self.pooler(x[:, 0])


class ErnieForPretraining(nn.Layer):
    def __init__(self, **kwargs):
        super().__init__()
        self.ernie = ErnieModel(**kwargs)
        hidden = self.ernie.word_embeddings.weight.shape[1]
        self.transform = nn.Sequential(nn.Linear(hidden, hidden), nn.GELU(), nn.LayerNorm(hidden))
        self.seq_relationship = nn.Linear(hidden, 2)

    def forward(self, input_ids, token_type_ids, attention_mask, masked_positions):
        sequence, pooled = self.ernie(input_ids, token_type_ids, attention_mask)
        masked = paddle.gather(sequence.reshape([-1, sequence.shape[-1]]), masked_positions)
        scores = paddle.matmul(self.transform(masked), self.ernie.word_embeddings.weight, transpose_y=True)
        return scores, self.seq_relationship(pooled)


class ErniePretrainingCriterion(nn.Layer):
    def __init__(self, with_nsp_loss=True):
        super().__init__()
        self.with_nsp_loss = with_nsp_loss

    def forward(self, scores, relationship, masked_lm_labels, next_sentence_labels):
        lm_loss = F.cross_entropy(scores, masked_lm_labels, ignore_index=-1)
        if not self.with_nsp_loss:
            return lm_loss, paddle.zeros([])
        return lm_loss, F.cross_entropy(relationship, next_sentence_labels)
