import torch

from ..config import AMP_DTYPE, INIT_SCALE


def amp_dtype():
    return getattr(torch, AMP_DTYPE)


class NativeScaler:
    """Backward pass, clipping and step of one optimizer."""

    state_dict_key = "amp_scaler"

    def __init__(self):
        self._scaler = torch.cuda.amp.GradScaler(init_scale=INIT_SCALE)

    def __call__(self, loss, optimizer, clip_grad=None, parameters=None, need_update=True):
        self._scaler.scale(loss).backward()
        if need_update:
            if clip_grad is not None:
                self._scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
            self._scaler.step(optimizer)
            self._scaler.update()
