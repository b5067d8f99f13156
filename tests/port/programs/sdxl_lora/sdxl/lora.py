"""Low-rank layers beside the projections of an attention."""

import math

import paddle
import paddle.nn as nn


class LoRALinearLayer(nn.Layer):
    def __init__(self, in_features, out_features, rank=4, network_alpha=None):
        super().__init__()
        if rank > min(in_features, out_features):
            raise ValueError(f"LoRA rank {rank} must not exceed {min(in_features, out_features)}")
        self.down = nn.Linear(in_features, rank, bias_attr=False)
        self.up = nn.Linear(rank, out_features, bias_attr=False)
        self.network_alpha = network_alpha
        self.rank = rank
        nn.initializer.Normal(std=1.0 / rank)(self.down.weight)
        nn.initializer.Constant(0.0)(self.up.weight)

    def forward(self, hidden_states):
        orig_dtype = hidden_states.dtype
        down = self.down(hidden_states.astype(self.down.weight.dtype))
        up = self.up(down)
        if self.network_alpha is not None:
            up = up * (self.network_alpha / self.rank)
        return up.astype(orig_dtype)


class LoRACompatibleLinear(nn.Layer):
    def __init__(self, linear, rank):
        super().__init__()
        self.linear = linear
        in_features, out_features = linear.weight.shape
        self.lora = LoRALinearLayer(in_features, out_features, rank)

    def forward(self, x):
        return self.linear(x) + self.lora(x)


def add_lora(unet, rank):
    """The parameters that are trained; all others are frozen."""
    for parameter in unet.parameters():
        parameter.stop_gradient = True
    parameters = []
    for name, layer in list(unet.named_sublayers()):
        for projection in ("to_q", "to_k", "to_v"):
            linear = getattr(layer, projection, None)
            if isinstance(linear, nn.Linear):
                wrapped = LoRACompatibleLinear(linear, rank)
                setattr(layer, projection, wrapped)
                parameters.extend(wrapped.lora.parameters())
    if not parameters:
        raise ValueError("nothing in this unet is named to_q, to_k or to_v")
    return parameters


def lora_state_dict(unet):
    return {k: v for k, v in unet.state_dict().items() if ".lora." in k}


def compute_snr(noise_scheduler, timesteps):
    alphas = noise_scheduler.alphas_cumprod
    alpha = paddle.sqrt(alphas)[timesteps].astype("float32")
    sigma = paddle.sqrt(1.0 - alphas)[timesteps].astype("float32")
    while len(alpha.shape) < len(timesteps.shape):
        alpha, sigma = alpha[..., None], sigma[..., None]
    return (alpha / sigma) ** 2


def updates_per_epoch(batches, steps):
    return math.ceil(batches / steps)
