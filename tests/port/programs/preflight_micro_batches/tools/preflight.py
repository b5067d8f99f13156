"""Preflight of a scheduled experiment before a full run: one step of four micro-batches."""

import hashlib
import json
import sys
from pathlib import Path

import torch

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from detector.core import YAMLConfig, move_targets


def model_digest(model):
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        digest.update(value.cpu().numpy().tobytes())
    return digest.hexdigest()


def main():
    arm = sys.argv[1] if len(sys.argv) > 1 else "mask"
    assert arm in ("mask", "box")
    torch.set_num_threads(4)
    torch.manual_seed(0)
    config = REPO / f"experiments/{arm}_decay9_14_b8a4_20e.yml"
    cfg = YAMLConfig(str(config))
    model = cfg.model
    initial_digest = model_digest(model)

    schedule = {}
    for epoch in range(20):
        model.set_training_epoch(epoch)
        schedule[str(epoch)] = model.supervision_scale()
    assert schedule["0"] == 1.0
    assert schedule["19"] == 0.0

    model = model.cuda()
    criterion = cfg.criterion.cuda()
    optimizer = cfg.optimizer
    samples, targets = next(iter(cfg.train_dataloader))
    samples = samples.cuda()
    targets = move_targets(targets, "cuda")

    model.eval()
    with torch.no_grad():
        scheduled = model(samples)
        model.teacher_enabled = False
        control = model(samples)
        for key in ("pred_logits", "pred_boxes"):
            torch.testing.assert_close(scheduled[key], control[key], rtol=0, atol=0)
    model.teacher_enabled = True
    del scheduled, control

    model.train()
    model.set_training_epoch(12)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        output = model(samples, targets)
    assert "group_loss" in output and output["group_loss"].item() > 0
    weighted_epoch12 = float(output["group_loss"])
    model.set_training_epoch(14)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        output = model(samples, targets)
    assert "group_loss" not in output
    del output

    model.set_training_epoch(0)
    optimizer.zero_grad(set_to_none=True)
    scaler = torch.cuda.amp.GradScaler(init_scale=128)
    rows = []
    torch.cuda.reset_peak_memory_stats()
    parameter = model.stages[1].weight
    before = parameter.detach().clone()
    for step, (batch, batch_targets) in enumerate(cfg.train_dataloader):
        if step == 4:
            break
        batch = batch.cuda()
        batch_targets = move_targets(batch_targets, "cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(batch, batch_targets)
        losses = criterion(output, batch_targets, epoch=0, step=step, global_step=step)
        assert all(torch.isfinite(value) for value in losses.values())
        assert losses["loss_group"].item() > 0
        rows.append(float(losses["loss_group"].detach()))
        scaler.scale(sum(losses.values()) / 4).backward()
    scaler.unscale_(optimizer)
    assert all(
        torch.isfinite(item.grad).all() for item in model.parameters() if item.grad is not None
    )
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
    parameter_update = (parameter - before).abs().max().item()
    assert parameter_update > 0

    result = {
        "status": "PASS",
        "arm": arm,
        "config": str(config),
        "initial_model_sha256": initial_digest,
        "physical_batch": len(samples),
        "schedule": schedule,
        "weighted_epoch12": weighted_epoch12,
        "weighted_epoch0_steps": rows,
        "parameter_update": parameter_update,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }
    report = REPO / "reports"
    report.mkdir(parents=True, exist_ok=True)
    (report / f"preflight_{arm}.json").write_text(json.dumps(result, indent=2), encoding="utf-8")
    print(result, flush=True)


if __name__ == "__main__":
    main()
