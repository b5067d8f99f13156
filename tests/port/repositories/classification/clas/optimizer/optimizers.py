import paddle.optimizer as optim


class Momentum(object):
    def __init__(self, learning_rate, momentum, **args):
        self.learning_rate = learning_rate
        self.momentum = momentum

    def __call__(self, model_list):
        parameters = sum([m.parameters() for m in model_list], [])
        return optim.Momentum(self.learning_rate, self.momentum, parameters)
