import paddle
from paddle import nn


def clip_grad_value_(parameters, clip_value, norm_type=2):
    """The norm of all gradients; clips them to ``clip_value`` unless it is None."""
    parameters = [p for p in parameters if p.grad is not None]
    total_norm = 0.0
    for p in parameters:
        total_norm += float(p.grad.norm(norm_type)) ** norm_type
        if clip_value is not None:
            p.grad.clip_(min=-clip_value, max=clip_value)
    return total_norm ** (1.0 / norm_type)


def mel_spectrogram(wave, frame=512):
    frames = wave.reshape([wave.shape[0], -1, frame])
    return (frames**2).mean(axis=-1).clip(min=1e-5).log()


class SynthesizerTrn(nn.Layer):
    def __init__(self, units, hidden, hop):
        super().__init__()
        self.posterior = nn.Conv1D(hop // 2 + 1, 2 * hidden, 5, padding=2)
        self.prior = nn.Conv1D(units, 2 * hidden, 5, padding=2)
        self.flow = nn.Conv1D(hidden, hidden, 5, padding=2)
        self.decoder = nn.Conv1DTranspose(hidden, 1, hop, stride=hop)

    def forward(self, units, spec):
        m_q, logs_q = self.posterior(spec).chunk(2, axis=1)
        m_p, logs_p = self.prior(units).chunk(2, axis=1)
        z = m_q + paddle.randn(m_q.shape) * logs_q.exp()
        z_p = self.flow(z)
        return self.decoder(z).squeeze(1).tanh(), (z_p, logs_q, m_p, logs_p)


class PeriodDiscriminator(nn.Layer):
    def __init__(self, period):
        super().__init__()
        self.period = period
        sizes = [1, 32, 128]
        self.convs = nn.LayerList(
            nn.Conv2D(a, b, (5, 1), (3, 1), (2, 0)) for a, b in zip(sizes, sizes[1:])
        )
        self.last = nn.Conv2D(sizes[-1], 1, (3, 1), padding=(1, 0))

    def forward(self, wave):
        length = wave.shape[1] // self.period * self.period
        x = wave[:, :length].reshape([wave.shape[0], 1, -1, self.period])
        maps = []
        for conv in self.convs:
            x = nn.functional.leaky_relu(conv(x), 0.1)
            maps.append(x)
        return self.last(x).flatten(1), maps


class MultiPeriodDiscriminator(nn.Layer):
    def __init__(self):
        super().__init__()
        self.discriminators = nn.LayerList(PeriodDiscriminator(p) for p in (2, 3, 5, 7, 11))

    def forward(self, wave, wave_hat):
        real, fake, maps_real, maps_fake = [], [], [], []
        for discriminator in self.discriminators:
            score, maps = discriminator(wave)
            score_hat, maps_hat = discriminator(wave_hat)
            real.append(score)
            fake.append(score_hat)
            maps_real += maps
            maps_fake += maps_hat
        return real, fake, maps_real, maps_fake
