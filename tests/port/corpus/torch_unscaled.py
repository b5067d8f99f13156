"""float16 without a scaler: nobody should, but it is what happens there."""

import torch as th

for x, y in loader:
    with th.autocast(device_type="cuda"):
        loss = loss_fn(model(x), y)
    loss.backward()
    th.nn.utils.clip_grad_value_(model.parameters(), 0.5)
    optimizer.step()
