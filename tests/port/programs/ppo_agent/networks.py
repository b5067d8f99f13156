import torch
import torch.nn as nn
from torch.distributions import Categorical


def layer_init(layer, std=2**0.5, bias_const=0.0):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias_const)
    return layer


class ActorCritic(nn.Module):
    def __init__(self, frames, actions, hidden=512):
        super().__init__()
        self.network = nn.Sequential(
            layer_init(nn.Conv2d(frames, 32, 8, stride=4)),
            nn.ReLU(),
            layer_init(nn.Conv2d(32, 64, 4, stride=2)),
            nn.ReLU(),
            layer_init(nn.Conv2d(64, 64, 3, stride=1)),
            nn.ReLU(),
            nn.Flatten(),
            layer_init(nn.Linear(64 * 7 * 7, hidden)),
            nn.ReLU(),
        )
        self.actor = layer_init(nn.Linear(hidden, actions), std=0.01)
        self.critic = layer_init(nn.Linear(hidden, 1), std=1.0)

    def forward(self, observations):
        hidden = self.network(observations / 255.0)
        return Categorical(logits=self.actor(hidden).float()), self.critic(hidden).squeeze(-1)


class RolloutBuffer:
    def __init__(self, steps, envs, shape, device):
        self.observations = torch.zeros(steps, envs, *shape, device=device)
        self.actions = torch.zeros(steps, envs, dtype=torch.long, device=device)
        self.log_probs, self.rewards, self.dones, self.values = (
            torch.zeros(steps, envs, device=device) for _ in range(4)
        )

    def advantages(self, last_value, gamma, gae_lambda):
        steps = len(self.rewards)
        advantages, last = torch.zeros_like(self.rewards), 0.0
        for t in reversed(range(steps)):
            following = last_value if t == steps - 1 else self.values[t + 1]
            alive = 1.0 - self.dones[t]
            delta = self.rewards[t] + gamma * following * alive - self.values[t]
            advantages[t] = last = delta + gamma * gae_lambda * alive * last
        return advantages
