# DQN, after the tutorial
import torch
import torch.nn.functional as F

scaler = torch.amp.GradScaler("cuda")


def optimize_model():
    with torch.autocast("cuda", dtype=torch.float16):
        q = policy_net(states).gather(1, actions)
        loss = F.smooth_l1_loss(q, expected.unsqueeze(1))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for param in policy_net.parameters():
        param.grad.data.clamp_(-1, 1)
    scaler.step(optimizer)
    scaler.update()


for episode in range(600):
    optimize_model()
