"""What a base class from elsewhere has set; whether it is evaluated in between makes no difference."""

import paddle
from mylib.training import Trainer


class Recogniser(Trainer):
    def train_batch(self, batch):
        if self.use_amp:
            with paddle.amp.auto_cast(level=self.amp_level):
                loss = self.model(batch)
        else:
            loss = self.model(batch)
        loss.backward()

    def run(self):
        for epoch in range(self.epochs):
            for batch in self.loader:
                self.train_batch(batch)
            if self.validates and epoch > 3 and self.rank == 0:
                self.evaluate()

    def evaluate(self):
        if self.use_amp:
            with paddle.amp.auto_cast(level=self.amp_level):
                self.model(self.held_out)
