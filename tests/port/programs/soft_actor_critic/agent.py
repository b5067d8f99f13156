"""The agent: NumPy on one side, Paddle on the other."""

import numpy as np
import paddle


class MujocoAgent:
    def __init__(self, algorithm):
        self.alg = algorithm
        self.alg.sync_target()

    def predict(self, obs):
        obs = paddle.to_tensor(obs.reshape(1, -1), dtype="float32")
        return self.alg.predict(obs).numpy()[0]

    @paddle.no_grad()
    def sample(self, obs):
        obs = paddle.to_tensor(obs.reshape(1, -1), dtype="float32")
        return self.alg.sample(obs)[0].numpy()[0]

    def learn(self, *batch):
        obs, action, reward, next_obs, terminal = (paddle.to_tensor(x, dtype="float32") for x in batch)
        critic_loss, actor_loss = self.alg.learn(
            obs, action, reward.unsqueeze(-1), next_obs, terminal.unsqueeze(-1))
        return float(critic_loss), float(actor_loss)


class ReplayMemory:
    def __init__(self, max_size, obs_dim, act_dim):
        self.max_size, self._size, self._pos = max_size, 0, 0
        self.fields = [np.zeros((max_size, *shape), "float32") for shape in
                       ((obs_dim,), (act_dim,), (), (obs_dim,), ())]

    def size(self):
        return self._size

    def append(self, *transition):
        for field, value in zip(self.fields, transition):
            field[self._pos] = value
        self._pos = (self._pos + 1) % self.max_size
        self._size = min(self._size + 1, self.max_size)

    def sample_batch(self, batch_size):
        index = np.random.randint(self._size, size=batch_size)
        return [field[index] for field in self.fields]
