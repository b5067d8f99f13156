"""Paddle's guide to mixed precision: O2, in a class of one's own."""

from paddle import amp, nn, optimizer


class Trainer:
    level = "O2"

    def __init__(self, model, scale=1024):
        sgd = optimizer.SGD(learning_rate=1e-4, parameters=model.parameters())
        self.model, self.optimizer = amp.decorate(
            models=model,
            optimizers=sgd,
            level=self.level,
            master_weight=None,
            save_dtype=None,
        )
        self.scaler = amp.GradScaler(init_loss_scaling=scale)
        self.loss = nn.MSELoss()

    def autocast(self):
        return amp.auto_cast(level=self.level)

    def train_batch(self, data, label):
        with self.autocast():
            output = self.model(data)
        loss = self.loss(output, label)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.clear_grad()
        return loss


def main(batches, size=4096):
    layers = [nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size)]
    trainer = Trainer(nn.Sequential(*layers))
    for data, label in batches:
        trainer.train_batch(data, label)
