import torch
import tools
from torch import nn
from torch.nn import functional as F


def mlp(inputs, units, outputs):
    return nn.Sequential(
        nn.Linear(inputs, units), nn.LayerNorm(units), nn.SiLU(), nn.Linear(units, outputs)
    )


class WorldModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self._use_amp = True if config.precision == 16 else False
        self._config = config
        self.encoder = mlp(config.obs, config.units, config.units)
        self.cell = nn.GRUCell(config.units + config.actions, config.deter)
        self.decoder = mlp(config.deter, config.units, config.obs)
        self.reward = mlp(config.deter, config.units, 1)
        self._model_opt = tools.Optimizer(
            "model",
            self.parameters(),
            config.model_lr,
            config.opt_eps,
            config.grad_clip,
            config.weight_decay,
            opt=config.opt,
            use_amp=self._use_amp,
        )

    def observe(self, embed, action):
        state = embed.new_zeros(embed.shape[0], self._config.deter)
        states = []
        for t in range(embed.shape[1]):
            state = self.cell(torch.cat([embed[:, t], action[:, t]], -1), state)
            states.append(state)
        return torch.stack(states, 1)

    def fit(self, data):
        with tools.RequiresGrad(self):
            with torch.cuda.amp.autocast(self._use_amp):
                states = self.observe(self.encoder(data["obs"]), data["action"])
                losses = {
                    "obs": F.mse_loss(self.decoder(states), data["obs"]),
                    "reward": F.mse_loss(self.reward(states).squeeze(-1), data["reward"]),
                }
                model_loss = sum(losses.values())
            metrics = self._model_opt(model_loss, list(self.parameters()))
        return states.detach(), metrics


class ImagBehavior(nn.Module):
    def __init__(self, config, world_model):
        super().__init__()
        self._use_amp = True if config.precision == 16 else False
        self._config = config
        self._world = [world_model]  # a list, so that its parameters are not ours
        self.actor = mlp(config.deter, config.units, config.actions)
        self.value = mlp(config.deter, config.units, 1)
        kw = dict(wd=config.weight_decay, opt=config.opt, use_amp=self._use_amp)
        self._actor_opt = tools.Optimizer(
            "actor",
            self.actor.parameters(),
            config.actor_lr,
            config.opt_eps,
            config.actor_grad_clip,
            **kw,
        )
        self._value_opt = tools.Optimizer(
            "value",
            self.value.parameters(),
            config.value_lr,
            config.opt_eps,
            config.value_grad_clip,
            **kw,
        )

    def imagine(self, state):
        world = self._world[0]
        states, rewards = [], []
        for _ in range(self._config.imag_horizon):
            action = F.gumbel_softmax(self.actor(state), hard=True)
            state = world.cell(torch.cat([world.encoder(world.decoder(state)), action], -1), state)
            states.append(state)
            rewards.append(world.reward(state))
        return torch.stack(states), torch.stack(rewards)

    def fit(self, post):
        start = post.flatten(0, 1)
        with tools.RequiresGrad(self.actor):
            with torch.cuda.amp.autocast(self._use_amp):
                states, rewards = self.imagine(start)
                discount = self._config.discount ** torch.arange(len(rewards), device=start.device)
                returns = (rewards.squeeze(-1) * discount[:, None]).sum(0)
                actor_loss = -returns.mean()
        with tools.RequiresGrad(self.value):
            with torch.cuda.amp.autocast(self._use_amp):
                value_loss = F.mse_loss(self.value(start).squeeze(-1), returns.detach())
        metrics = {}
        with tools.RequiresGrad(self):
            metrics.update(self._actor_opt(actor_loss, list(self.actor.parameters())))
            metrics.update(self._value_opt(value_loss, list(self.value.parameters())))
        return metrics
