import torch
import torch.cuda.amp as amp


class Net(torch.nn.Module):
    @amp.autocast()
    def forward(self, x):
        return self.layers(x)


scaler = amp.GradScaler(growth_interval=1000)
net = Net().cuda()
for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
