"""Learns a world model from episodes, and an actor and a critic in its dreams.

    python dreamer.py --configs crafter --logdir ./logdir/crafter --steps 1e6
"""

import argparse
import pathlib
import sys

import models
import numpy as np
import torch
import tools
import yaml
from torch import nn


class Dreamer(nn.Module):
    def __init__(self, config, dataset):
        super().__init__()
        self._config = config
        self._dataset = dataset
        self._wm = models.WorldModel(config)
        self._behavior = models.ImagBehavior(config, self._wm)
        if config.compile:
            self._wm = torch.compile(self._wm)
            self._behavior = torch.compile(self._behavior)

    def train_step(self):
        metrics = {}
        post, mets = self._wm.fit(next(self._dataset))
        metrics.update(mets)
        metrics.update(self._behavior.fit(post))
        return metrics


def episodes(config):
    """Batches of pieces of episodes, for ever."""
    folder = pathlib.Path(config.traindir or config.logdir)
    files = sorted(folder.glob("*.npz"))
    random = np.random.RandomState(config.seed)
    while True:
        rows = []
        for _ in range(config.batch_size):
            with np.load(files[random.randint(len(files))]) as episode:
                start = random.randint(max(1, len(episode["reward"]) - config.batch_length))
                piece = slice(start, start + config.batch_length)
                rows.append({k: episode[k][piece] for k in ("obs", "action", "reward")})
        yield {
            k: torch.as_tensor(np.stack([row[k] for row in rows])).float().to(config.device)
            for k in rows[0]
        }


def main(config):
    torch.manual_seed(config.seed)
    logdir = pathlib.Path(config.logdir).expanduser()
    logdir.mkdir(parents=True, exist_ok=True)
    agent = Dreamer(config, episodes(config)).to(config.device)
    agent.requires_grad_(requires_grad=False)
    for step in range(int(config.steps)):
        metrics = agent.train_step()
        if step % int(config.log_every) == 0:
            print(step, {k: round(float(v), 4) for k, v in metrics.items()})
            torch.save(agent.state_dict(), logdir / "latest.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--configs", nargs="+")
    args, remaining = parser.parse_known_args()
    configs = yaml.safe_load((pathlib.Path(sys.argv[0]).parent / "configs.yaml").read_text())

    def recursive_update(base, update):
        for key, value in update.items():
            if isinstance(value, dict) and key in base:
                recursive_update(base[key], value)
            else:
                base[key] = value

    name_list = ["defaults", *args.configs] if args.configs else ["defaults"]
    defaults = {}
    for name in name_list:
        recursive_update(defaults, configs[name])
    parser = argparse.ArgumentParser()
    for key, value in sorted(defaults.items(), key=lambda x: x[0]):
        arg_type = tools.args_type(value)
        parser.add_argument(f"--{key}", type=arg_type, default=arg_type(value))
    main(parser.parse_args(remaining))
