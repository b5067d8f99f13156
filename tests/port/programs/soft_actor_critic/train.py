"""Soft actor-critic on MuJoCo: python train.py --env HalfCheetah-v4 --amp"""

import argparse

import gymnasium as gym
import numpy as np

from agent import MujocoAgent, ReplayMemory
from algorithm import SAC
from configs import get_config
from model import MujocoModel


def run_train_episode(agent, env, rpm, config):
    action_dim = env.action_space.shape[0]
    obs, _ = env.reset()
    done, episode_reward, episode_steps = False, 0.0, 0
    while not done:
        episode_steps += 1
        # Select action randomly or according to policy
        if rpm.size() < config["warmup_steps"]:
            action = np.random.uniform(-1, 1, size=action_dim)
        else:
            action = agent.sample(obs)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        done = terminated or truncated
        rpm.append(obs, action, reward, next_obs, float(terminated))
        obs = next_obs
        episode_reward += reward

        # Train agent after collecting sufficient data
        if rpm.size() >= config["warmup_steps"]:
            agent.learn(*rpm.sample_batch(config["batch_size"]))
    return episode_reward, episode_steps


def main():
    config = get_config(args.env)
    env = gym.make(args.env)
    obs_dim = env.observation_space.shape[0]
    action_dim = env.action_space.shape[0]

    model = MujocoModel(obs_dim, action_dim)
    algorithm = SAC(
        model,
        action_dim,
        gamma=config["gamma"],
        tau=config["tau"],
        alpha=config["alpha"],
        actor_lr=config["actor_lr"],
        critic_lr=config["critic_lr"],
        grad_norm=config["grad_norm"],
        amp=config["amp"],
        use_amp=args.amp)
    agent = MujocoAgent(algorithm)
    rpm = ReplayMemory(max_size=config["memory_size"], obs_dim=obs_dim, act_dim=action_dim)

    total_steps = 0
    while total_steps < config["train_total_steps"]:
        episode_reward, episode_steps = run_train_episode(agent, env, rpm, config)
        total_steps += episode_steps
        print(f"Total Steps: {total_steps} Reward: {episode_reward}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", default="HalfCheetah-v4", help="Mujoco gym environment name")
    parser.add_argument("--seed", default=0, type=int, help="Sets Gym seed")
    parser.add_argument("--amp", action="store_true", default=False, help="train in mixed precision")
    args = parser.parse_args()
    np.random.seed(args.seed)
    main()
