from .train import train
from .val import evaluate
