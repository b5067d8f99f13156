from .train import train
from .val import evaluate

__all__ = ['train', 'evaluate']
