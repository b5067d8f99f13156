import paddle.nn as nn


class Model(nn.Layer):
    """An encoder over the past, and a projection onto the steps ahead."""

    def __init__(self, enc_in, c_out, pred_len, d_model, n_heads, e_layers, dropout):
        super().__init__()
        self.pred_len = pred_len
        self.embedding = nn.Linear(enc_in, d_model)
        layer = nn.TransformerEncoderLayer(
            d_model, n_heads, 4 * d_model, dropout=dropout, activation="gelu"
        )
        self.encoder = nn.TransformerEncoder(layer, e_layers)
        self.norm = nn.LayerNorm(d_model)
        self.projection = nn.Linear(d_model, c_out)

    def forward(self, x):
        hidden = self.norm(self.encoder(self.embedding(x)))
        return self.projection(hidden[:, -self.pred_len :, :])
