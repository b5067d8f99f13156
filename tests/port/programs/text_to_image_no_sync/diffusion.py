import math
import os

import numpy as np
import paddle
from paddle import nn
from paddle.io import DataLoader, Dataset


class LatentsOfImages(Dataset):
    def __init__(self, folder):
        self.latents = np.load(os.path.join(folder, "latents.npy"), mmap_mode="r")
        self.tokens = np.load(os.path.join(folder, "tokens.npy"))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return np.asarray(self.latents[index], "float32"), self.tokens[index]


def latents_and_captions(folder, batch_size):
    return DataLoader(LatentsOfImages(folder), batch_size=batch_size, shuffle=True, drop_last=True)


class NoiseSchedule:
    def __init__(self, steps=1000):
        betas = np.linspace(0.00085**0.5, 0.012**0.5, steps) ** 2
        self.alphas = paddle.to_tensor(np.cumprod(1.0 - betas).astype("float32"))
        self.steps = steps

    def sample(self, count):
        return paddle.randint(0, self.steps, [count])

    def add_noise(self, latents, noise, timesteps):
        alpha = self.alphas[timesteps].reshape([-1, 1, 1, 1])
        return alpha.sqrt() * latents + (1.0 - alpha).sqrt() * noise

    def snr_weights(self, timesteps, gamma):
        alpha = self.alphas[timesteps]
        snr = alpha / (1.0 - alpha)
        return paddle.clip(snr, max=gamma) / snr


class TextEncoder(nn.Layer):
    def __init__(self, vocabulary=49408, width=256):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 4, 4 * width), 2)

    def forward(self, tokens):
        return self.layers(self.embedding(tokens))


class UNet(nn.Layer):
    """One level of a U-Net, conditioned on the time and on the states of a text."""

    def __init__(self, channels=4, width=128, context=256):
        super().__init__()
        self.width = width
        self.first = nn.Conv2D(channels, width, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(width, width), nn.Silu(), nn.Linear(width, width))
        self.attention = nn.MultiHeadAttention(width, 4, kdim=context, vdim=context)
        self.norm = nn.LayerNorm(width)
        self.last = nn.Conv2D(width, channels, 3, padding=1)

    def forward(self, x, timesteps, states):
        half = self.width // 2
        frequencies = paddle.exp(-math.log(10000.0) * paddle.arange(half) / half)
        angles = timesteps.astype("float32").unsqueeze(-1) * frequencies
        time = self.time(paddle.concat([angles.sin(), angles.cos()], axis=-1))
        h = nn.functional.silu(self.first(x) + time.unsqueeze(-1).unsqueeze(-1))
        rows = h.flatten(2).transpose([0, 2, 1])
        rows = rows + self.attention(self.norm(rows), states, states)
        return self.last(rows.transpose([0, 2, 1]).reshape(h.shape))


class AverageOfWeights:
    def __init__(self, model, decay=0.9999):
        self.decay = decay
        self.weights = [parameter.clone().detach() for parameter in model.parameters()]

    def step(self, model):
        for average, parameter in zip(self.weights, model.parameters()):
            average.set_value(self.decay * average + (1 - self.decay) * parameter.detach())
