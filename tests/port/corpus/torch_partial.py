"""timm's way: a partial that is entered by calling it, or suppress."""

from contextlib import suppress
from functools import partial

import torch

use_amp = True
amp_dtype = torch.bfloat16
amp_autocast = suppress
if use_amp:
    amp_autocast = partial(torch.autocast, device_type="cuda", dtype=amp_dtype)

for input, target in loader:
    with amp_autocast():
        loss = loss_fn(model(input), target)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
