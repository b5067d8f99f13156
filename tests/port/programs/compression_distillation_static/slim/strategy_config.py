"""The sections of a compression's configuration as objects."""

from collections import namedtuple

ProgramInfo = namedtuple(
    "ProgramInfo",
    ["startup_program", "program", "feed_target_names", "fetch_targets", "optimizer", "learning_rate"])


class BaseStrategy:
    def __init__(self, name):
        self.name = name


class Distillation(BaseStrategy):
    def __init__(self, loss="l2", alpha=1.0, temperature=4.0):
        """
        Args:
            loss(str): 'l2' or 'soft_label'.
            alpha(float): the weight of the distillation's loss.
        """
        super().__init__("Distillation")
        self.loss = loss
        self.alpha = alpha
        self.temperature = temperature


class TrainConfig:
    def __init__(self,
                 epochs=None,
                 train_iter=None,
                 learning_rate=0.02,
                 optimizer_builder={"optimizer": {"type": "SGD"}},
                 eval_iter=1000,
                 logging_iter=10,
                 amp_config=None):
        """
        Args:
            amp_config(dict, optional): the arguments of paddle.static.amp.decorate, and custom_white_list,
                custom_black_list and custom_black_varnames.
        """
        self.epochs = epochs
        self.train_iter = train_iter
        self.learning_rate = learning_rate
        self.optimizer_builder = optimizer_builder
        self.eval_iter = eval_iter
        self.logging_iter = logging_iter
        self.amp_config = amp_config
