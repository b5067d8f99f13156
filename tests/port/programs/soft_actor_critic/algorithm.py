"""Soft actor-critic with a learned temperature."""

from copy import deepcopy

import paddle
import paddle.nn.functional as F
from paddle.distribution import Normal


class SAC:
    def __init__(self, model, action_dim, gamma=None, tau=None, alpha=None, actor_lr=None, critic_lr=None,
                 grad_norm=None, amp=None, use_amp=False):
        for method in ("value", "policy", "get_actor_params", "get_critic_params"):
            assert hasattr(model, method), f"the model needs a method {method}"
        self.gamma = gamma
        self.tau = tau
        self.target_entropy = -float(action_dim)

        self.model = model
        self.target_model = deepcopy(self.model)
        clip = paddle.nn.ClipGradByGlobalNorm(grad_norm) if grad_norm else None
        self.actor_optimizer = paddle.optimizer.Adam(
            learning_rate=actor_lr, parameters=self.model.get_actor_params(), grad_clip=clip)
        self.critic_optimizer = paddle.optimizer.Adam(
            learning_rate=critic_lr, parameters=self.model.get_critic_params(), grad_clip=clip)
        self.log_alpha = paddle.create_parameter(
            [1], "float32", default_initializer=paddle.nn.initializer.Constant(float(paddle.log(paddle.to_tensor(alpha)))))
        self.alpha_optimizer = paddle.optimizer.Adam(learning_rate=actor_lr, parameters=[self.log_alpha])

        self.use_amp = use_amp
        self.amp = dict(amp)
        self.cast_args = {"level": self.amp.pop("level"), "dtype": self.amp.pop("dtype")}
        self.scaler = paddle.amp.GradScaler(enable=self.use_amp, **self.amp)

    @property
    def alpha(self):
        return self.log_alpha.exp().detach()

    def sample(self, obs):
        act_mean, act_log_std = self.model.policy(obs)
        normal = Normal(act_mean, act_log_std.exp())
        x_t = normal.rsample([1])
        action = paddle.tanh(x_t)
        # Enforcing Action Bound
        log_prob = normal.log_prob(x_t) - paddle.log((1 - action.pow(2)) + 1e-6)
        log_prob = paddle.sum(log_prob, axis=-1, keepdim=True)
        return action[0], log_prob[0]

    def predict(self, obs):
        return paddle.tanh(self.model.policy(obs)[0])

    def learn(self, obs, action, reward, next_obs, terminal):
        critic_loss = self._critic_learn(obs, action, reward, next_obs, terminal)
        actor_loss, log_pi = self._actor_learn(obs)
        self.scaler.update()
        self._alpha_learn(log_pi)
        self.sync_target()
        return critic_loss, actor_loss

    def _critic_learn(self, obs, action, reward, next_obs, terminal):
        with paddle.amp.auto_cast(enable=self.use_amp, **self.cast_args):
            with paddle.no_grad():
                next_action, next_log_pro = self.sample(next_obs)
                q1_next, q2_next = self.target_model.value(next_obs, next_action)
                target_q = paddle.minimum(q1_next, q2_next) - self.alpha * next_log_pro
                target_q = reward + self.gamma * (1.0 - terminal) * target_q
            cur_q1, cur_q2 = self.model.value(obs, action)
            critic_loss = F.mse_loss(cur_q1, target_q) + F.mse_loss(cur_q2, target_q)

        self.critic_optimizer.clear_grad()
        self.scaler.scale(critic_loss).backward()
        self.scaler.step(self.critic_optimizer)
        return critic_loss

    def _actor_learn(self, obs):
        with paddle.amp.auto_cast(enable=self.use_amp, **self.cast_args):
            act, log_pi = self.sample(obs)
            q1_pi, q2_pi = self.model.value(obs, act)
            actor_loss = (self.alpha * log_pi - paddle.minimum(q1_pi, q2_pi)).mean()

        self.actor_optimizer.clear_grad()
        self.scaler.scale(actor_loss).backward()
        self.scaler.step(self.actor_optimizer)
        return actor_loss, log_pi.detach()

    def _alpha_learn(self, log_pi):
        # one number, in float32: it needs no loss scaling
        loss = -(self.log_alpha * (log_pi.astype("float32") + self.target_entropy)).mean()
        self.alpha_optimizer.clear_grad()
        loss.backward()
        self.alpha_optimizer.step()

    @paddle.no_grad()
    def sync_target(self):
        for target, param in zip(self.target_model.parameters(), self.model.parameters()):
            target.set_value((1.0 - self.tau) * target + self.tau * param)
