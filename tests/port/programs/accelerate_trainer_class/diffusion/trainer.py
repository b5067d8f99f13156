"""A trainer with everything in its constructor."""

import copy
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import GradScalerKwargs
from torch.optim import Adam


def cycle(size, image_size):
    generator = torch.Generator().manual_seed(0)
    while True:
        yield torch.rand(size, 3, image_size, image_size, generator=generator) * 2 - 1


class Trainer:
    def __init__(
        self,
        diffusion_model,
        *,
        train_batch_size=16,
        gradient_accumulate_every=1,
        train_lr=1e-4,
        train_num_steps=100_000,
        adam_betas=(0.9, 0.99),
        ema_decay=0.995,
        save_and_sample_every=1000,
        results_folder="./results",
        amp=False,
        mixed_precision_type="fp16",
        init_scale=2.0**16,
        split_batches=True,
        max_grad_norm=1.0,
    ):
        handlers = [GradScalerKwargs(init_scale=init_scale)] if amp else []
        self.accelerator = Accelerator(
            split_batches=split_batches,
            mixed_precision=mixed_precision_type if amp else "no",
            kwargs_handlers=handlers,
        )
        self.batch_size = train_batch_size
        self.gradient_accumulate_every = gradient_accumulate_every
        self.train_num_steps = train_num_steps
        self.save_and_sample_every = save_and_sample_every
        self.max_grad_norm = max_grad_norm
        self.ema_decay = ema_decay
        self.results_folder = Path(results_folder)

        self.dl = cycle(train_batch_size, diffusion_model.image_size)
        self.opt = Adam(diffusion_model.parameters(), lr=train_lr, betas=adam_betas)
        self.ema = copy.deepcopy(diffusion_model).to(self.device).eval().requires_grad_(False)
        self.step = 0
        self.model, self.opt = self.accelerator.prepare(diffusion_model, self.opt)

    @property
    def device(self):
        return self.accelerator.device

    def save(self, milestone):
        if not self.accelerator.is_local_main_process:
            return
        self.results_folder.mkdir(exist_ok=True, parents=True)
        scaler = self.accelerator.scaler
        data = {
            "step": self.step,
            "model": self.accelerator.get_state_dict(self.model),
            "opt": self.opt.state_dict(),
            "scaler": scaler.state_dict() if scaler is not None else None,
        }
        torch.save(data, self.results_folder / f"model-{milestone}.pt")

    @torch.no_grad()
    def update_ema(self):
        model = self.accelerator.unwrap_model(self.model)
        for average, parameter in zip(self.ema.parameters(), model.parameters()):
            average.lerp_(parameter.float(), 1 - self.ema_decay)

    def train(self):
        accelerator = self.accelerator
        while self.step < self.train_num_steps:
            self.model.train()
            total_loss = 0.0
            for _ in range(self.gradient_accumulate_every):
                data = next(self.dl).to(self.device)
                with accelerator.autocast():
                    loss = self.model(data)
                    loss = loss / self.gradient_accumulate_every
                    total_loss += loss.item()
                accelerator.backward(loss)
            accelerator.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
            self.opt.step()
            self.opt.zero_grad()
            self.step += 1
            self.update_ema()
            if self.step % self.save_and_sample_every == 0:
                accelerator.print(f"{self.step}: loss {total_loss:.4f}")
                with accelerator.autocast():
                    self.ema.sample(batch_size=4)
                self.save(self.step // self.save_and_sample_every)
