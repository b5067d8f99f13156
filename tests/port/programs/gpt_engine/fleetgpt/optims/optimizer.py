import paddle
from paddle.optimizer import Adam, AdamW, Momentum

__all__ = ["Adam", "AdamW", "Momentum", "FusedAdamW"]


class FusedAdamW(paddle.optimizer.AdamW):
    """AdamW that decays neither biases nor what normalizations have."""

    def __init__(self, learning_rate, parameters, grad_clip, **config):
        self.no_decay = [p.name for p in parameters if "bias" in p.name or "norm" in p.name]
        super().__init__(
            learning_rate=learning_rate,
            parameters=parameters,
            grad_clip=grad_clip,
            apply_decay_param_fun=lambda name: name not in self.no_decay,
            **config,
        )
