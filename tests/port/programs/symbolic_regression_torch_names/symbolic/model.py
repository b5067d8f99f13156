import paddle

from .envs import WORDS


class Encoder(paddle.nn.Module):
    def __init__(self, params):
        super().__init__()
        self.embedder = paddle.nn.Linear(3, params.emb_dim)
        layer = paddle.nn.TransformerEncoderLayer(
            params.emb_dim, params.n_heads, 4 * params.emb_dim
        )
        self.layers = paddle.nn.TransformerEncoder(layer, params.n_layers)

    def forward(self, points):
        return self.layers(self.embedder(points))


class Decoder(paddle.nn.Module):
    def __init__(self, params):
        super().__init__()
        self.embeddings = paddle.nn.Embedding(len(WORDS), params.emb_dim)
        layer = paddle.nn.TransformerDecoderLayer(
            params.emb_dim, params.n_heads, 4 * params.emb_dim
        )
        self.layers = paddle.nn.TransformerDecoder(layer, params.n_layers)
        self.proj = paddle.nn.Linear(params.emb_dim, len(WORDS))

    def forward(self, formula, encoded):
        scores = self.proj(self.layers(self.embeddings(formula[:, :-1]), encoded))
        return paddle.nn.functional.cross_entropy(scores, formula[:, 1:])


def build_modules(env, params):
    return {"encoder": Encoder(params), "decoder": Decoder(params)}
