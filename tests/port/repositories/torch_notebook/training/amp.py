import torch

GROWTH_INTERVAL = 200


def make_scaler():
    return torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=GROWTH_INTERVAL)
