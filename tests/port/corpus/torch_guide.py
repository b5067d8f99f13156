"""As in PyTorch's recipe on automatic mixed precision."""

import torch

net = make_model(in_size, out_size, num_layers).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.001)
scaler = torch.amp.GradScaler("cuda")

for epoch in range(epochs):
    for input, target in zip(data, targets):
        with torch.autocast(device_type="cuda", dtype=torch.float16):
            output = net(input)
            loss = loss_fn(output, target)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=0.1)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
