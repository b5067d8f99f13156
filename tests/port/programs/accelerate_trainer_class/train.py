"""Trains a denoiser of 32x32 images."""

from diffusion.denoiser import Denoiser, GaussianDiffusion
from diffusion.trainer import Trainer

AMP = dict(amp=True, init_scale=2.0**12)

diffusion = GaussianDiffusion(Denoiser(dim=64), image_size=32, timesteps=1000)

trainer = Trainer(
    diffusion,
    train_batch_size=16,
    train_lr=8e-5,
    train_num_steps=700_000,
    gradient_accumulate_every=3,
    ema_decay=0.995,
    **AMP,
)

if __name__ == "__main__":
    trainer.train()
