"""Adversarial perturbation of the embedding (FGM), and averaged weights.

    python adversarial.py      trains a toy with both, and prints its loss
"""

import paddle
from paddle import nn


class FGM:
    """Moves the embedding along its gradient, and back."""

    def __init__(self, model, name="word_embeddings"):
        self.model = model
        self.name = name
        self.backup = {}

    def attack(self, epsilon=1.0):
        for name, parameter in self.model.named_parameters():
            if self.name in name and parameter.grad is not None:
                self.backup[name] = parameter.clone()
                norm = paddle.norm(parameter.grad)
                if float(norm) != 0.0 and not bool(paddle.isnan(norm)):
                    parameter.set_value(parameter + epsilon * parameter.grad / norm)

    def restore(self):
        for name, parameter in self.model.named_parameters():
            if name in self.backup:
                parameter.set_value(self.backup[name])
        self.backup = {}


class ExponentialMovingAverage:
    def __init__(self, parameters, decay=0.999):
        self.parameters = list(parameters)
        self.decay = decay
        self.shadow = [parameter.clone().detach() for parameter in self.parameters]
        self.kept = None

    def step(self):
        for shadow, parameter in zip(self.shadow, self.parameters):
            shadow.set_value(self.decay * shadow + (1.0 - self.decay) * parameter.detach())

    def apply(self):
        self.kept = [parameter.clone() for parameter in self.parameters]
        for shadow, parameter in zip(self.shadow, self.parameters):
            parameter.set_value(shadow)

    def restore(self):
        for kept, parameter in zip(self.kept, self.parameters):
            parameter.set_value(kept)


if __name__ == "__main__":
    toy = nn.Linear(8, 2)
    sgd = paddle.optimizer.SGD(0.1, parameters=toy.parameters())
    toy_scaler = paddle.amp.GradScaler(init_loss_scaling=8192, incr_every_n_steps=50)
    average = ExponentialMovingAverage(toy.parameters(), 0.9)
    for i in range(20):
        x = paddle.randn([16, 8])
        with paddle.amp.auto_cast(level="O2"):
            toy_loss = (toy(x) ** 2).mean() / 2
        toy_scaler.scale(toy_loss).backward()
        if (i + 1) % 2 == 0:
            toy_scaler.step(sgd)
            toy_scaler.update()
            sgd.clear_grad()
            average.step()
    print(float(toy_loss))
