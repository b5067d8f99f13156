"""Trains a model of image tokens.

    accelerate launch train.py config=configs/stage1.yaml training.max_train_steps=500
"""

import logging
import os

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.logging import get_logger
from accelerate.utils import set_seed
from omegaconf import OmegaConf
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from training.utils import AverageMeter, flatten_omega_conf, get_config, mask_tokens

logger = get_logger(__name__, log_level="INFO")


class TokenModel(nn.Module):
    def __init__(self, vocab_size, hidden_size, num_layers, num_heads):
        super().__init__()
        self.embed = nn.Embedding(vocab_size + 1, hidden_size)  # the last is [MASK]
        layer = nn.TransformerEncoderLayer(hidden_size, num_heads, 4 * hidden_size, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers)
        self.to_logits = nn.Linear(hidden_size, vocab_size)

    def forward(self, tokens):
        return self.to_logits(self.encoder(self.embed(tokens)))


class Quantizer(nn.Module):
    """The frozen tokenizer of images."""

    def __init__(self, vocab_size, dim=16):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 8, 8)
        self.codes = nn.Embedding(vocab_size, dim)

    @torch.no_grad()
    def get_code(self, images):
        features = self.patch(images).flatten(2).transpose(1, 2)
        return torch.cdist(features.float(), self.codes.weight.float()).argmin(-1)


def main():
    config = get_config()
    config.experiment.logging_dir = os.path.join(config.experiment.output_dir, "logs")
    accelerator = Accelerator(
        gradient_accumulation_steps=config.training.gradient_accumulation_steps,
        mixed_precision=config.training.mixed_precision,
        project_dir=config.experiment.logging_dir,
        split_batches=True,
    )
    logging.basicConfig(level=logging.INFO)
    logger.info(flatten_omega_conf(config))
    if config.training.seed is not None:
        set_seed(config.training.seed)
    if accelerator.is_main_process:
        os.makedirs(config.experiment.output_dir, exist_ok=True)
        OmegaConf.save(config, os.path.join(config.experiment.output_dir, "config.yaml"))

    quantizer = Quantizer(config.model.vocab_size).to(accelerator.device, dtype=torch.bfloat16)
    quantizer.requires_grad_(False)
    model = TokenModel(**config.model)
    optimizer = torch.optim.AdamW(model.parameters(), **config.optimizer.params)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.training.max_train_steps)
    images = torch.randn(512, 3, 64, 64)
    loader = DataLoader(TensorDataset(images), config.training.batch_size, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    losses, global_step = AverageMeter(), 0
    while global_step < config.training.max_train_steps:
        for (images,) in loader:
            tokens = quantizer.get_code(images.to(torch.bfloat16))
            inputs, masked = mask_tokens(tokens, config.model.vocab_size, config.training.min_masking_rate)
            with accelerator.accumulate(model):
                logits = model(inputs)
                loss = F.cross_entropy(
                    logits[masked], tokens[masked], label_smoothing=config.training.label_smoothing
                )
                accelerator.backward(loss)
                if config.training.max_grad_norm is not None and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), config.training.max_grad_norm)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad(set_to_none=True)
            losses.update(accelerator.gather(loss.detach()).mean().item())
            if accelerator.sync_gradients:
                global_step += 1
                if global_step % config.experiment.log_every == 0:
                    logger.info("step %d: loss %.4f", global_step, losses.avg)
            if global_step >= config.training.max_train_steps:
                break
    accelerator.wait_for_everyone()
    accelerator.save_model(model, config.experiment.output_dir)


if __name__ == "__main__":
    main()
