"""The model, from features to losses."""

import paddle
import paddle.nn as nn
from paddle.base.framework import _dygraph_tracer

from fold.heads import HEADS
from fold.modules import EmbeddingsAndEvoformer


def to_float32(values):
    """Tensors of bfloat16 in float32, gradients through them as before."""
    for key, value in values.items():
        if value.dtype == paddle.bfloat16:
            wide = value.cast("float32")
            wide.stop_gradient = value.stop_gradient
            values[key] = wide
    return values


class FoldIteration(nn.Layer):
    def __init__(self, common, config, global_config):
        super().__init__()
        self.config = config
        self.evoformer = EmbeddingsAndEvoformer(
            common, config.embeddings_and_evoformer, global_config
        )
        for name, head in HEADS.items():
            head = head(config.embeddings_and_evoformer, config.heads[name])
            setattr(self, "head_" + name, head)

    def _forward_heads(self, representations, batch, compute_loss):
        ret, total_loss = {}, 0.0
        for name in HEADS:
            head = getattr(self, "head_" + name)
            ret[name] = head(representations, batch)
            if name == "structure_module":
                representations["structure_module"] = ret[name].pop("act")
            if compute_loss:
                loss = head.loss(ret[name], batch)
                ret[name]["loss"] = loss
                total_loss += self.config.heads[name].weight * loss
        return ret, total_loss

    def forward(self, batch, prev, compute_loss=False):
        representations = self.evoformer(batch, prev)
        tracer = _dygraph_tracer()
        if tracer._amp_dtype == "bfloat16":
            with paddle.amp.auto_cast(enable=False):
                representations = to_float32(representations)
                batch = to_float32(batch)
                ret, total_loss = self._forward_heads(representations, batch, compute_loss)
        else:
            ret, total_loss = self._forward_heads(representations, batch, compute_loss)
        ret["representations"] = representations
        return ret, total_loss


class Fold(nn.Layer):
    """A few iterations, each with what the last one made; gradients through the last alone."""

    def __init__(self, common, config, global_config):
        super().__init__()
        self.config = config
        self.iteration = FoldIteration(common, config, global_config)

    def forward(self, batch, num_recycle=None, compute_loss=False):
        num_recycle = self.config.num_recycle if num_recycle is None else num_recycle
        prev = None
        with paddle.no_grad():
            for _ in range(num_recycle):
                ret, _ = self.iteration(dict(batch), prev)
                prev = ret["representations"]
        return self.iteration(batch, prev, compute_loss)


class RunModel(nn.Layer):
    def __init__(self, train_config, model_config):
        super().__init__()
        self.train_config = train_config
        self.model = Fold(
            model_config.data.common, model_config.model, model_config.model.global_config
        )

    def forward(self, batch, compute_loss=True):
        recycle = None
        if self.training:
            most = self.train_config["max_recycling_iters"]
            recycle = int(paddle.randint(0, most + 1, [1]))
        results, loss = self.model(batch, recycle, compute_loss)
        if compute_loss and self.train_config["scale_by_length"]:
            loss = loss * paddle.sqrt(batch["seq_mask"].sum())
        return results, loss
