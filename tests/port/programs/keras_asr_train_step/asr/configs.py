"""The YAML file of an experiment, as attributes."""

import os
from string import Template

import yaml


def load_yaml(path, **variables):
    with open(os.path.expanduser(path), encoding="utf-8") as file:
        return yaml.safe_load(Template(file.read()).safe_substitute(variables))


class LearningConfig:
    def __init__(self, config: dict):
        self.batch_size = config.get("batch_size", 1)
        self.ga_steps = config.get("ga_steps")
        self.num_epochs = config.get("num_epochs", 100)
        self.steps_per_epoch = config.get("steps_per_epoch", 100)
        self.optimizer_config = config.get("optimizer_config", {})


class Config:
    def __init__(self, path: str, **variables):
        data = load_yaml(path, **variables)
        self.model_config = data.get("model_config", {})
        self.learning_config = LearningConfig(data.get("learning_config", {}))
