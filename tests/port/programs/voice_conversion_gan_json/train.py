"""Singing voice conversion: a generator of waveforms against discriminators of several periods."""

import logging
import os

import paddle
import utils
from losses import discriminator_loss, feature_loss, generator_loss, kl_loss
from models import MultiPeriodDiscriminator, SynthesizerTrn, clip_grad_value_, mel_spectrogram
from paddle.amp import GradScaler, auto_cast
from paddle.io import DataLoader
from paddle.nn import functional as F

global_step = 0


def main():
    hps = utils.get_hparams()
    os.makedirs(hps.model_dir, exist_ok=True)
    run(hps)


def run(hps):
    paddle.seed(hps.train.seed)
    dataset = utils.UnitsAndAudio(hps.data.training_files, hps.train.segment_size)
    train_loader = DataLoader(dataset, batch_size=hps.train.batch_size, shuffle=True)

    net_g = SynthesizerTrn(**hps.model)
    net_d = MultiPeriodDiscriminator()
    decay_g = paddle.optimizer.lr.ExponentialDecay(hps.train.learning_rate, hps.train.lr_decay)
    decay_d = paddle.optimizer.lr.ExponentialDecay(hps.train.learning_rate, hps.train.lr_decay)
    optim_g = paddle.optimizer.AdamW(
        learning_rate=decay_g,
        parameters=net_g.parameters(),
        beta1=hps.train.betas[0],
        beta2=hps.train.betas[1],
        epsilon=hps.train.eps,
    )
    optim_d = paddle.optimizer.AdamW(
        learning_rate=decay_d,
        parameters=net_d.parameters(),
        beta1=hps.train.betas[0],
        beta2=hps.train.betas[1],
        epsilon=hps.train.eps,
    )
    scaler = GradScaler(enable=hps.train.fp16_run)

    for epoch in range(1, hps.train.epochs + 1):
        train_and_evaluate(epoch, hps, [net_g, net_d], [optim_g, optim_d], scaler, train_loader)
        decay_g.step()
        decay_d.step()


def train_and_evaluate(epoch, hps, nets, optims, scaler, loader):
    global global_step
    net_g, net_d = nets
    optim_g, optim_d = optims
    net_g.train()
    net_d.train()
    for units, spec, wave in loader:
        with auto_cast(enable=hps.train.fp16_run):
            wave_hat, (z_p, logs_q, m_p, logs_p) = net_g(units, spec)
            mel, mel_hat = mel_spectrogram(wave), mel_spectrogram(wave_hat)
            real, fake, _, _ = net_d(wave, wave_hat.detach())
            with auto_cast(enable=False):
                loss_disc = discriminator_loss(real, fake)

        optim_d.clear_grad()
        scaler.scale(loss_disc).backward()
        scaler.unscale_(optim_d)
        grad_norm_d = clip_grad_value_(net_d.parameters(), None)
        scaler.step(optim_d)

        with auto_cast(enable=hps.train.fp16_run):
            _, fake, maps_real, maps_fake = net_d(wave, wave_hat)
            with auto_cast(enable=False):
                loss_mel = F.l1_loss(mel_hat, mel) * hps.train.c_mel
                loss_kl = kl_loss(z_p, logs_q, m_p, logs_p) * hps.train.c_kl
                loss_fm = feature_loss(maps_real, maps_fake)
                loss_gen = generator_loss(fake) + loss_fm + loss_mel + loss_kl

        optim_g.clear_grad()
        scaler.scale(loss_gen).backward()
        scaler.unscale_(optim_g)
        grad_norm_g = clip_grad_value_(net_g.parameters(), None)
        scaler.step(optim_g)
        scaler.update()

        if global_step % hps.train.log_interval == 0:
            logging.info(
                "epoch %d step %d: disc %.3f gen %.3f, gradients %.2f and %.2f",
                *(epoch, global_step, float(loss_disc), float(loss_gen), grad_norm_d, grad_norm_g),
            )
        if global_step % hps.train.eval_interval == 0:
            paddle.save(net_g.state_dict(), f"{hps.model_dir}/G_{global_step}.pdparams")
            paddle.save(net_d.state_dict(), f"{hps.model_dir}/D_{global_step}.pdparams")
        global_step += 1


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    main()
