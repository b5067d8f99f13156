"""Models of node embeddings, as static graphs."""

import paddle
import paddle.nn.functional as F


class GNNModel:
    def __init__(self, config, is_predict=False):
        self.config = config
        self.is_predict = is_predict
        self.startup_program = None
        self.train_program = None

        src = paddle.static.data("src", [None, 1], "int64")
        dst = paddle.static.data("dst", [None, 1 + config.neg_num], "int64")
        self.holder_list = [src, dst]

        table = paddle.ParamAttr(name="embedding", initializer=paddle.nn.initializer.Uniform(-0.1, 0.1))
        size = [config.num_nodes, config.emb_size]
        src_emb = paddle.static.nn.embedding(src, size, param_attr=table)
        dst_emb = paddle.static.nn.embedding(dst, size, param_attr=table)
        if config.sage_mode:
            src_emb = self.transform(src_emb)
            dst_emb = self.transform(dst_emb)
        self.loss = self.nce_loss(src_emb, dst_emb)

    def transform(self, x):
        hidden = paddle.static.nn.fc(x, self.config.hidden_size, num_flatten_dims=2, activation="relu")
        return paddle.static.nn.fc(hidden, self.config.emb_size, num_flatten_dims=2)

    def nce_loss(self, src, dst):
        logits = paddle.matmul(src, dst, transpose_y=True).squeeze(1)
        positive = F.binary_cross_entropy_with_logits(logits[:, :1], paddle.ones_like(logits[:, :1]))
        negative = F.binary_cross_entropy_with_logits(logits[:, 1:], paddle.zeros_like(logits[:, 1:]))
        return paddle.mean(positive + self.config.neg_num * negative)
