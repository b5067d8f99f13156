import copy
import math

import torch


def at_least(version):
    numbers = torch.__version__.split("+")[0].split(".")[:2]
    return [int(n) for n in numbers] >= [int(n) for n in version.split(".")]


TORCH_1_13 = at_least("1.13")
TORCH_2_4 = at_least("2.4")


def autocast(enabled, device="cuda"):
    if TORCH_1_13:
        return torch.amp.autocast(device, enabled=enabled)
    return torch.cuda.amp.autocast(enabled)


def check_amp(model):
    """Whether autocast gives nearly the outputs of full precision; a few GPUs fail."""
    device = next(model.parameters()).device
    if device.type in {"cpu", "mps"}:
        return False
    images = torch.rand(2, 3, 64, 64, device=device)
    training = model.training
    model.eval()
    with torch.no_grad():
        exact = model.predict(images)
        with autocast(enabled=True):
            rough = model.predict(images)
    model.train(training)
    return bool(torch.allclose(exact, rough.float(), atol=0.5))


class ModelEMA:
    def __init__(self, model, decay=0.9999, tau=2000, updates=0):
        self.ema = copy.deepcopy(model).eval()
        self.updates = updates
        self.decay = lambda x: decay * (1 - math.exp(-x / tau))
        for p in self.ema.parameters():
            p.requires_grad_(False)

    def update(self, model):
        self.updates += 1
        d = self.decay(self.updates)
        new = model.state_dict()
        for k, v in self.ema.state_dict().items():
            if v.dtype.is_floating_point:
                v.mul_(d).add_(new[k].detach(), alpha=1 - d)
