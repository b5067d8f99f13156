import argparse
import warnings
from contextlib import contextmanager

import torch
from packaging import version


class AttributeDict(dict):
    def __getattr__(self, key):
        if key in self:
            return self[key]
        raise AttributeError(f"No such attribute '{key}'")

    def __setattr__(self, key, value):
        self[key] = value


def str2bool(v):
    if isinstance(v, bool):
        return v
    if v.lower() in ("yes", "true", "t", "y", "1"):
        return True
    if v.lower() in ("no", "false", "f", "n", "0"):
        return False
    raise argparse.ArgumentTypeError("Boolean value expected.")


@contextmanager
def torch_autocast(device_type="cuda", **kwargs):
    """``torch.amp.autocast``, also of torch before 2.3."""
    if version.parse(torch.__version__) >= version.parse("2.3.0"):
        with torch.amp.autocast(device_type=device_type, **kwargs):
            yield
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=FutureWarning)
            with torch.cuda.amp.autocast(**kwargs):
                yield


def create_grad_scaler(device="cuda", **kwargs):
    """``torch.amp.GradScaler``, also of torch before 2.3."""
    if version.parse(torch.__version__) >= version.parse("2.3.0"):
        from torch.amp import GradScaler

        return GradScaler(device=device, **kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=FutureWarning)
        return torch.cuda.amp.GradScaler(**kwargs)


def prepare_input(params, batch, device):
    features = batch["features"].to(device) * params.feat_scale
    return batch["tokens"].to(device), features, batch["features_lens"].to(device)
