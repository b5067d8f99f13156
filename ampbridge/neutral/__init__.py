"""What a training loop needs besides mixed precision, in the same words for every framework.

Losses, optimizers, learning rates, models, batches and evaluation. What comes out is native, and what
goes in may be: each of these can be replaced by the framework's own, one at a time.

    from ampbridge import neutral

    model = neutral.mlp("torch", 64, [128, 64], 10)      # a torch.nn.Module
    optimizer = neutral.optimizer("adamw", model, lr=1e-3)   # a torch.optim.AdamW
"""

from ampbridge.neutral.data import batches
from ampbridge.neutral.evaluation import Evaluation, evaluate, predict
from ampbridge.neutral.losses import cross_entropy, mse_loss
from ampbridge.neutral.models import convnet, forward, mlp, transformer
from ampbridge.neutral.optimizers import optimizer
from ampbridge.neutral.rates import RateSchedule, schedule

__all__ = [
    "Evaluation",
    "RateSchedule",
    "batches",
    "convnet",
    "cross_entropy",
    "evaluate",
    "forward",
    "mlp",
    "mse_loss",
    "optimizer",
    "predict",
    "schedule",
    "transformer",
]
