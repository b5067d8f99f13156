from paddle import optimizer as optim
from paddle import regularizer


class L2Decay(object):
    def __init__(self, factor=0.0):
        self.regularization_coeff = float(factor)

    def __call__(self):
        return regularizer.L2Decay(self.regularization_coeff)


class Momentum(object):
    def __init__(self, learning_rate, momentum, weight_decay=None, grad_clip=None, **args):
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.grad_clip = grad_clip

    def __call__(self, model):
        train_params = [param for param in model.parameters() if param.trainable is True]
        return optim.Momentum(
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            grad_clip=self.grad_clip,
            parameters=train_params,
        )


class Adam(object):
    def __init__(
        self,
        learning_rate=0.001,
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-08,
        parameter_list=None,
        weight_decay=None,
        grad_clip=None,
        name=None,
        lazy_mode=False,
        **kwargs,
    ):
        self.learning_rate = learning_rate
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon
        self.weight_decay = weight_decay
        self.grad_clip = grad_clip
        self.name = name
        self.lazy_mode = lazy_mode

    def __call__(self, model):
        train_params = [param for param in model.parameters() if param.trainable is True]
        opt = optim.Adam(
            learning_rate=self.learning_rate,
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
            weight_decay=self.weight_decay,
            grad_clip=self.grad_clip,
            name=self.name,
            lazy_mode=self.lazy_mode,
            parameters=train_params,
        )
        return opt
