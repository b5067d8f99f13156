import torch
from torch import nn


class FlowMatchingTts(nn.Module):
    """The velocity that carries noise to a spectrogram, given a text."""

    def __init__(self, vocab_size, text_dim, decoder_dim, decoder_layers, feat_dim):
        super().__init__()
        self.text = nn.Embedding(vocab_size, text_dim)
        self.text_encoder = nn.GRU(text_dim, text_dim, batch_first=True)
        self.inp = nn.Linear(2 * feat_dim + text_dim + 1, decoder_dim)
        layer = nn.TransformerEncoderLayer(
            decoder_dim, 8, 4 * decoder_dim, batch_first=True, norm_first=True
        )
        self.decoder = nn.TransformerEncoder(layer, decoder_layers)
        self.out = nn.Linear(decoder_dim, feat_dim)

    def forward(self, tokens, features, features_lens, noise, t, drop_ratio):
        text, _ = self.text_encoder(self.text(tokens))
        stretched = nn.functional.interpolate(text.transpose(1, 2), size=features.size(1))
        text = stretched.transpose(1, 2)
        dropped = torch.rand(len(text), 1, 1, device=text.device) < drop_ratio
        text = torch.where(dropped, torch.zeros_like(text), text)
        xt = features * t + noise * (1 - t)
        time = t.expand(-1, features.size(1), 1)
        prompt = torch.where(torch.rand_like(time) < 0.7, torch.zeros_like(features), features)
        vt = self.out(self.decoder(self.inp(torch.cat([xt, prompt, text, time], dim=-1))))
        frames = torch.arange(features.size(1), device=t.device)
        mask = (frames[None, :] < features_lens[:, None]).unsqueeze(-1)
        error = (vt.float() - (features - noise)) ** 2
        return (error * mask).sum() / (mask.sum() * features.size(-1))
