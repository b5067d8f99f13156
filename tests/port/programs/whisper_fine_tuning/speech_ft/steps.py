"""One step of training, of several micro-batches."""

import copy
from dataclasses import asdict

import torch
import torch.nn.functional as F

import speech_ft.runtime as rt


def train_step(model, train_iter, optimizer, lr_scheduler, t_config, scaler=None):
    model.train()
    total_loss = 0.0

    # Read variables from t_config
    mixed_precision_training = t_config["mixed_precision_training"]
    accum_grad_steps = t_config["accum_grad_steps"]
    max_grad_norm = t_config["max_grad_norm"]
    mp_dtype = torch.float16 if t_config["mp_dtype"] == "fp16" else torch.bfloat16
    label_smoothing = t_config.get("label_smoothing", 0.0)

    use_fp16 = mixed_precision_training and t_config["mp_dtype"] == "fp16"
    if use_fp16 and scaler is None:
        raise ValueError("fp16 mixed precision training requires a persistent GradScaler.")
    if not use_fp16:
        scaler = None  # No scaler for bf16 or fp32.

    for accum_idx in range(accum_grad_steps):
        is_accum_last = accum_idx == accum_grad_steps - 1
        x, y_in, y_out = (t.to(rt.DEVICE, non_blocking=True) for t in next(train_iter))
        with rt.maybe_no_sync(model, enabled=rt.IS_DISTRIBUTED and not is_accum_last):
            with torch.autocast(device_type="cuda", enabled=mixed_precision_training, dtype=mp_dtype):
                logits = model(x, y_in)
                loss = F.cross_entropy(logits.transpose(1, 2), y_out, label_smoothing=label_smoothing)
                loss = loss / accum_grad_steps
            if scaler:
                scaler.scale(loss).backward()
            else:
                loss.backward()
        total_loss += loss.item()

    if scaler:
        # Unscales the gradients of optimizer's assigned params in-place
        scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)

    if scaler:
        # Step scheduler only if optimizer.step actually happened (i.e., no overflow skip).
        scale_before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale_before:
            lr_scheduler.step()
    else:
        optimizer.step()
        lr_scheduler.step()
    optimizer.zero_grad(set_to_none=True)
    return total_loss


def save_model(model, save_path):
    model = rt.unwrap_model(model)
    # save model in half precision to save space
    model = copy.deepcopy(model).half()
    torch.save({"model_state_dict": model.state_dict(), "dims": asdict(model.dims)}, save_path)


def infinite_iter(data_loader):
    while True:
        for batch in data_loader:
            yield batch
