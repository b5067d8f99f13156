import torch


def build_model():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 1000))
