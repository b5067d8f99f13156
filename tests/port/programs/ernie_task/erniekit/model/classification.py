# -*- coding: utf-8 -*
import json

import paddle
import paddle.nn as nn
import paddle.nn.functional as F

from erniekit.common.register import RegisterSet


@RegisterSet.models.register
class ErnieClassification(nn.Layer):
    def __init__(self, model_params):
        super().__init__()
        self.model_params = model_params
        self.optimizer = None
        self.lr_scheduler = None

    def structure(self):
        with open(self.model_params["embedding"]["config_path"]) as f:
            config = json.load(f)
        size = config["hidden_size"]
        self.words = nn.Embedding(config["vocab_size"], size)
        self.places = nn.Embedding(config["max_position_embeddings"], size)
        layer = nn.TransformerEncoderLayer(
            size, config["num_attention_heads"], 4 * size, config["hidden_dropout_prob"], "gelu"
        )
        self.encoder = nn.TransformerEncoder(layer, config["num_hidden_layers"])
        self.fc = nn.Linear(size, self.model_params.get("num_labels", 2))

    def forward(self, fields, phase="training"):
        ids = fields["text_a"]
        x = self.words(ids) + self.places(paddle.arange(ids.shape[1]))
        logits = self.fc(self.encoder(x)[:, 0])
        result = {"predict_result": F.softmax(logits)}
        if phase != "save_inference":
            result["loss"] = F.cross_entropy(logits, fields["label"])
            result["label"] = fields["label"]
        return result

    def set_optimizer(self):
        opt_param = self.model_params.get("optimization", None)
        self.lr = opt_param["learning_rate"]
        if opt_param.get("use_lr_decay", False):
            self.lr_scheduler = paddle.optimizer.lr.PolynomialDecay(self.lr, decay_steps=10000)
        g_clip = None
        if opt_param.get("grad_clip_norm", 0):
            g_clip = paddle.nn.ClipGradByGlobalNorm(opt_param["grad_clip_norm"])
        self.optimizer = paddle.optimizer.AdamW(
            learning_rate=self.lr_scheduler or self.lr,
            parameters=self.parameters(),
            weight_decay=opt_param["weight_decay"],
            apply_decay_param_fun=lambda name: "norm" not in name and "b_0" not in name,
            grad_clip=g_clip,
        )
        return self.optimizer

    def get_metrics(self, result):
        right = result["predict_result"].argmax(-1) == result["label"].flatten()
        return float(right.astype("float32").mean())
