import collections
import logging
import time

import numpy as np
import paddle
import paddle.distributed as dist


class ResultsCollect(object):
    """Losses and scores of many chains, by name."""

    def __init__(self):
        self.values = collections.defaultdict(list)

    def add(self, batch, results, extra=None):
        for name, value in {**results, **(extra or {})}.items():
            self.values[name].append(float(np.asarray(value, dtype="float32").mean()))

    def get_result(self):
        means = {name: float(np.mean(values)) for name, values in self.values.items()}
        if dist.get_world_size() > 1:
            for name in sorted(means):
                total = paddle.to_tensor(means[name])
                dist.all_reduce(total)
                means[name] = float(total) / dist.get_world_size()
        return means


class TrainLogger(object):
    def __init__(self):
        self.counts = collections.defaultdict(int)
        self.times = collections.defaultdict(float)
        self.started = {}

    def start(self, name):
        self.started[name] = time.time()

    def end(self, name):
        self.counts[name] += 1
        self.times[name] += time.time() - self.started.pop(name)

    def state(self):
        means = {name: self.times[name] / self.counts[name] for name in self.times}
        text = ", ".join("{} {:.3f}s".format(name, seconds) for name, seconds in means.items())
        self.counts.clear()
        self.times.clear()
        return text

    def print_loss(self, step, results):
        text = " ".join("{}={:.4f}".format(k, v) for k, v in sorted(results.items()))
        logging.info("step %d %s %s", step, text, self.state())
