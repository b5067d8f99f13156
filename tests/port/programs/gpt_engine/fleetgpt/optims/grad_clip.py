import paddle
from paddle.nn import ClipGradByGlobalNorm, ClipGradByNorm, ClipGradByValue

__all__ = ["ClipGradByGlobalNorm", "ClipGradByNorm", "ClipGradByValue", "total_norm"]


def total_norm(parameters):
    """For the log: the joint norm of what the gradients are by now."""
    squares = [p.grad.astype("float32").square().sum() for p in parameters if p.grad is not None]
    return paddle.add_n(squares).sqrt()
