import torch
from accelerate import Accelerator

accelerator = Accelerator(mixed_precision="fp16")
net, opt, dl = accelerator.prepare(net, opt, dl)
for x, y in dl:
    loss = torch.nn.functional.cross_entropy(net(x), y)
    accelerator.backward(loss)
    accelerator.unscale_gradients()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
