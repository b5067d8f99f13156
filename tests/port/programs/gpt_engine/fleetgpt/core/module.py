import paddle.nn as nn


class BasicModule(nn.Layer):
    """What the engine calls: the steps of a model, whatever it is."""

    def __init__(self, configs):
        super().__init__()
        self.configs = configs
        self.model = self.get_model()

    def get_model(self):
        raise NotImplementedError

    def forward(self, *args, **kwargs):
        raise NotImplementedError

    def pretreating_batch(self, batch):
        return batch

    def training_step(self, batch):
        raise NotImplementedError

    def backward(self, loss):
        loss.backward()

    def validation_step(self, batch):
        raise NotImplementedError

    def training_step_end(self, log_dict):
        pass

    def validation_step_end(self, log_dict):
        pass
