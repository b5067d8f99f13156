class PanSegRunner(object):
    """A model with what it is trained by; it knows nothing of precision."""

    def __init__(self, model, criterion):
        self.model = model
        self.criterion = criterion
        self.optimizer = None

    def bind(self, optimizer):
        self.optimizer = optimizer

    def train_forward(self, data):
        outputs = self.model(data["img"])
        return self.criterion(outputs, data)

    def eval_forward(self, data):
        return self.model(data["img"])
