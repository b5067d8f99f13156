import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.amp import GradScaler, autocast

from networks import ActorCritic, RolloutBuffer


class PPO:
    """Proximal policy optimization, in mixed precision on a GPU."""

    def __init__(
        self,
        envs,
        device,
        max_grad_norm,
        learning_rate=2.5e-4,
        gamma=0.99,
        gae_lambda=0.95,
        clip_range=0.1,
        entropy_coef=0.01,
        value_coef=0.5,
        epochs=4,
        minibatches=4,
        steps=128,
        use_amp=True,
    ):
        self.envs, self.device = envs, device
        self.max_grad_norm = max_grad_norm
        self.gamma, self.gae_lambda = gamma, gae_lambda
        self.clip_range = clip_range
        self.entropy_coef, self.value_coef = entropy_coef, value_coef
        self.epochs, self.minibatches, self.steps = epochs, minibatches, steps
        self.use_amp = use_amp
        shape = envs.single_observation_space.shape
        self.agent = ActorCritic(shape[0], envs.single_action_space.n).to(device)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=learning_rate, eps=1e-5)
        self.scaler = GradScaler("cuda", enabled=use_amp)
        self.buffer = RolloutBuffer(steps, envs.num_envs, shape, device)
        self.observation = torch.as_tensor(envs.reset()[0], device=device).float()

    @torch.no_grad()
    def collect(self):
        for t in range(self.steps):
            policy, value = self.agent(self.observation)
            action = policy.sample()
            following, reward, ended, truncated, _ = self.envs.step(action.cpu().numpy())
            self.buffer.observations[t] = self.observation
            self.buffer.actions[t], self.buffer.values[t] = action, value
            self.buffer.log_probs[t] = policy.log_prob(action)
            self.buffer.rewards[t] = torch.as_tensor(reward, device=self.device)
            self.buffer.dones[t] = torch.as_tensor(ended | truncated, device=self.device).float()
            self.observation = torch.as_tensor(following, device=self.device).float()
        last_value = self.agent(self.observation)[1]
        return self.buffer.advantages(last_value, self.gamma, self.gae_lambda)

    def update(self):
        advantages = self.collect()
        returns = (advantages + self.buffer.values).flatten()
        advantages = advantages.flatten()
        observations = self.buffer.observations.flatten(0, 1)
        actions, old = self.buffer.actions.flatten(), self.buffer.log_probs.flatten()
        losses = []
        for _ in range(self.epochs):
            for index in torch.randperm(len(actions), device=self.device).chunk(self.minibatches):
                with autocast("cuda", dtype=torch.float16, enabled=self.use_amp):
                    policy, value = self.agent(observations[index])
                    ratio = (policy.log_prob(actions[index]) - old[index]).exp()
                    gain = advantages[index]
                    gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                    clipped = ratio.clamp(1 - self.clip_range, 1 + self.clip_range)
                    policy_loss = torch.max(-gain * ratio, -gain * clipped).mean()
                    value_loss = F.mse_loss(value.float(), returns[index])
                    entropy = policy.entropy().mean()
                    loss = policy_loss + self.value_coef * value_loss - self.entropy_coef * entropy

                self.optimizer.zero_grad()
                self.scaler.scale(loss).backward()
                nn.utils.clip_grad_norm_(self.agent.parameters(), self.max_grad_norm)
                self.scaler.step(self.optimizer)
                self.scaler.update()
                losses.append(loss.detach())
        return torch.stack(losses).mean().item()
