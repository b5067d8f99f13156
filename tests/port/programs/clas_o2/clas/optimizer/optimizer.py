from paddle import optimizer as optim


class Momentum(object):
    def __init__(
        self,
        learning_rate,
        momentum,
        weight_decay=None,
        grad_clip=None,
        use_nesterov=False,
        multi_precision=True,
    ):
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.grad_clip = grad_clip
        self.multi_precision = multi_precision
        self.use_nesterov = use_nesterov

    def __call__(self, model_list):
        # model_list is None in static graph
        parameters = sum([m.parameters() for m in model_list], []) if model_list else None
        opt = optim.Momentum(
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            grad_clip=self.grad_clip,
            multi_precision=self.multi_precision,
            use_nesterov=self.use_nesterov,
            parameters=parameters,
        )
        return opt


class AdamW(object):
    def __init__(self, learning_rate, weight_decay=0.01, grad_clip=None, multi_precision=False):
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.grad_clip = grad_clip
        self.multi_precision = multi_precision

    def __call__(self, model_list):
        parameters = sum([m.parameters() for m in model_list], []) if model_list else None
        return optim.AdamW(
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            grad_clip=self.grad_clip,
            multi_precision=self.multi_precision,
            parameters=parameters,
        )
