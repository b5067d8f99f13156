import os

import numpy as np
import torch

from . import misc
from .hparams import hparams
from .models import ConsistencyUNet

torch.backends.cudnn.benchmark = True


def huber(x, y, weight):
    c = 0.00054 * np.sqrt(x[0].numel())
    return ((((x - y) ** 2 + c**2).sqrt() - c).mean(dim=(1, 2)) * weight).mean()


class Trainer:
    def __init__(self):
        torch.manual_seed(hparams.seed + misc.get_rank())
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dl = misc.get_dataloader(hparams.batch_size)
        self.get_models()

    def get_models(self):
        gen = ConsistencyUNet().to(self.device)
        self.gen = gen
        self.ddp = None
        if hparams.multi_gpu:
            self.ddp = torch.nn.parallel.DistributedDataParallel(gen, device_ids=[self.device])
        self.optimizer = torch.optim.RAdam(gen.parameters(), lr=hparams.lr, betas=(0.9, 0.999))
        self.scaler = torch.amp.GradScaler(enabled=hparams.mixed_precision)
        self.ema = misc.ExponentialMovingAverage(gen, decay=hparams.ema_momentum)
        self.it = 0
        if hparams.load_path is not None:
            checkpoint = torch.load(hparams.load_path, map_location="cpu")
            gen.load_state_dict(checkpoint["gen"])
            self.optimizer.load_state_dict(checkpoint["optimizer"])
            self.scaler.load_state_dict(checkpoint["scaler"])
            self.it = checkpoint["it"]

    @torch.compile(mode="max-autotune-no-cudagraphs", disable=not hparams.compile_model)
    def forward_pass(self, data, noisy, noisier, sigma, sigma_plus_one):
        with torch.autocast(
            device_type="cuda", dtype=torch.float16, enabled=hparams.mixed_precision
        ):
            model = self.ddp if hparams.multi_gpu else self.gen
            target, prediction = model(data, noisy, noisier, sigma, sigma_plus_one)
            loss = huber(prediction, target, 1.0 / (sigma_plus_one - sigma))
        return loss

    def sigmas(self, count):
        u = torch.rand(count, device=self.device)
        low, high = hparams.sigma_min ** (1 / hparams.rho), hparams.sigma_max ** (1 / hparams.rho)
        step = hparams.base_step ** (1 + self.it / hparams.total_iters)
        sigma = (low + u * (high - low)) ** hparams.rho
        sigma_plus_one = (low + (u + step).clamp(max=1.0) * (high - low)) ** hparams.rho
        return sigma, sigma_plus_one + 1e-4

    def train_it(self, wave):
        data = wave.view(len(wave), hparams.data_length, hparams.hop).transpose(1, 2)
        sigma, sigma_plus_one = self.sigmas(len(data))
        noise = torch.randn_like(data)
        noisy = data + noise * sigma[:, None, None]
        noisier = data + noise * sigma_plus_one[:, None, None]

        last = (self.it + 1) % hparams.accumulate_gradients == 0 or self.it + 1 == len(self.dl)
        with misc.ddp_sync(self.ddp, last):
            loss = self.forward_pass(data, noisy, noisier, sigma, sigma_plus_one)
        self.scaler.scale(loss.float()).backward()
        loss = loss.detach().cpu().item()

        grad_norm = misc.get_grad_norm(self.gen.parameters())
        if last:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad(set_to_none=True)
        if hparams.enable_ema and misc.get_rank() == 0:
            self.ema.update(self.gen)
        return loss, grad_norm.item()

    def update_learning_rate(self):
        if self.it < hparams.warmup_steps:
            rate = hparams.lr * self.it / hparams.warmup_steps
        else:
            done = (self.it - hparams.warmup_steps) / (hparams.total_iters - hparams.warmup_steps)
            rate = hparams.final_lr + 0.5 * (hparams.lr - hparams.final_lr) * (
                1.0 + np.cos(done * np.pi)
            )
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def train(self):
        self.gen.train()
        while self.it < hparams.total_iters:
            losses = []
            for wave in self.dl:
                self.update_learning_rate()
                loss, grad_norm = self.train_it(wave.to(self.device))
                losses.append(loss)
                self.it += 1
            if misc.get_rank() == 0:
                print(self.it, np.mean(losses), grad_norm)
                self.save_checkpoint()

    def save_checkpoint(self):
        os.makedirs(hparams.checkpoint_path, exist_ok=True)
        checkpoint = {
            "gen": self.gen.state_dict(),
            "ema": self.ema.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "it": self.it,
        }
        torch.save(checkpoint, f"{hparams.checkpoint_path}/it_{self.it}.pt")


def main():
    Trainer().train()
