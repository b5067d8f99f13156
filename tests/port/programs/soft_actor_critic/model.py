"""Actor and critic."""

import paddle
import paddle.nn as nn
import paddle.nn.functional as F

LOG_SIG_MAX = 2.0
LOG_SIG_MIN = -20.0


class Actor(nn.Layer):
    def __init__(self, obs_dim, action_dim, hidden=1024):
        super().__init__()
        self.l1 = nn.Linear(obs_dim, hidden)
        self.l2 = nn.Linear(hidden, hidden)
        self.mean_linear = nn.Linear(hidden, action_dim)
        self.std_linear = nn.Linear(hidden, action_dim)

    def forward(self, obs):
        x = F.relu(self.l2(F.relu(self.l1(obs))))
        return self.mean_linear(x), paddle.clip(self.std_linear(x), LOG_SIG_MIN, LOG_SIG_MAX)


class Critic(nn.Layer):
    def __init__(self, obs_dim, action_dim, hidden=1024):
        super().__init__()
        self.q1 = nn.Sequential(nn.Linear(obs_dim + action_dim, hidden), nn.ReLU(),
                                nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        self.q2 = nn.Sequential(nn.Linear(obs_dim + action_dim, hidden), nn.ReLU(),
                                nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, obs, action):
        x = paddle.concat([obs, action], 1)
        return self.q1(x), self.q2(x)


class MujocoModel(nn.Layer):
    def __init__(self, obs_dim, action_dim):
        super().__init__()
        self.actor_model = Actor(obs_dim, action_dim)
        self.critic_model = Critic(obs_dim, action_dim)

    def policy(self, obs):
        return self.actor_model(obs)

    def value(self, obs, action):
        return self.critic_model(obs, action)

    def get_actor_params(self):
        return self.actor_model.parameters()

    def get_critic_params(self):
        return self.critic_model.parameters()
