"""Updaters train by one batch; a trainer calls them until its stop, and extensions in between."""

from dataclasses import dataclass

from paddle.io import DistributedBatchSampler


@dataclass
class UpdaterState:
    iteration: int = 0
    epoch: int = 0


class StandardUpdater:
    def __init__(self, model, optimizer, dataloader, init_state=None):
        # it is designed to hold multiple models
        self.models = {"main": model}
        self.model = model
        self.optimizers = {"main": optimizer}
        self.optimizer = optimizer
        self.dataloader = dataloader
        self.train_iterator = iter(dataloader)
        self.state = UpdaterState() if init_state is None else init_state

    def update(self):
        for model in self.models.values():
            model.train()
        batch = self.read_batch()
        self.update_core(batch)
        self.state.iteration += 1
        if self.state.iteration % len(self.dataloader) == 0:
            self.state.epoch += 1

    def update_core(self, batch):
        """The simple case: one model, one optimizer, one loss, no accumulation."""
        loss = self.model(**batch)
        self.optimizer.clear_grad()
        loss.backward()
        self.optimizer.step()

    def read_batch(self):
        try:
            return next(self.train_iterator)
        except StopIteration:
            if isinstance(self.dataloader.batch_sampler, DistributedBatchSampler):
                self.dataloader.batch_sampler.set_epoch(self.state.epoch)
            self.train_iterator = iter(self.dataloader)
            return next(self.train_iterator)


class Trainer:
    def __init__(self, updater, stop_trigger, out):
        self.updater = updater
        self.limit, self.unit = stop_trigger
        self.out = out
        self.extensions = []

    def extend(self, extension, trigger):
        self.extensions.append((extension, trigger))

    def run(self):
        while getattr(self.updater.state, self.unit) < self.limit:
            self.updater.update()
            for extension, (period, unit) in self.extensions:
                if getattr(self.updater.state, unit) % period == 0:
                    extension(self)
