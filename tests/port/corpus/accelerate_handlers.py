import accelerate
from accelerate.utils import GradScalerKwargs

handlers = [GradScalerKwargs(init_scale=512.0, growth_interval=100)]
acc = accelerate.Accelerator(mixed_precision="fp16", kwargs_handlers=handlers)
model, optimizer = acc.prepare(model, optimizer)
for batch in loader:
    acc.backward(model(batch))
    optimizer.step()
    optimizer.zero_grad()
