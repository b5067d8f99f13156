import argparse
import random

import gymnasium as gym
import numpy as np
import torch

from ppo import PPO


def make_env(name, seed):
    def thunk():
        env = gym.make(name)
        env = gym.wrappers.AtariPreprocessing(env, frame_skip=4)
        env = gym.wrappers.FrameStackObservation(env, 4)
        env.action_space.seed(seed)
        return env

    return thunk


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", default="ALE/Breakout-v5")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--total-timesteps", type=int, default=10_000_000)
    parser.add_argument("--learning-rate", type=float, default=2.5e-4)
    parser.add_argument("--max-grad-norm", type=float, required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    envs = gym.vector.SyncVectorEnv([make_env(args.env, args.seed + i) for i in range(args.num_envs)])
    ppo = PPO(
        envs,
        device,
        max_grad_norm=args.max_grad_norm,
        learning_rate=args.learning_rate,
        use_amp=device.type == "cuda",
    )
    updates = args.total_timesteps // (args.num_envs * ppo.steps)
    for update in range(updates):
        loss = ppo.update()
        if update % 10 == 0:
            print("update {} of {}, loss {:.4f}".format(update, updates, loss))
    torch.save(ppo.agent.state_dict(), "ppo.pt")


if __name__ == "__main__":
    main()
