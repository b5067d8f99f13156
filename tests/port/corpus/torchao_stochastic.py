import torch
from torchao.prototype.low_bit_optim import _AdamW

from model import GPT, batches

model = GPT().cuda().bfloat16()
optimizer = _AdamW(model.parameters(), lr=3e-4, bf16_stochastic_round=True)
for x, y in batches():
    loss = model(x, y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
