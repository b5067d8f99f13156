import numpy as np
from paddle.io import BatchSampler, DistributedBatchSampler


class SortagradBatchSampler(BatchSampler):
    """The first epoch from short to long, those after it shuffled."""

    def __init__(self, dataset, batch_size, drop_last=False, sortagrad=False):
        self.dataset, self.batch_size = dataset, batch_size
        self.drop_last, self.sortagrad, self.epoch = drop_last, sortagrad, 0

    def __iter__(self):
        order = np.arange(len(self.dataset))
        if self.epoch > 0 or not self.sortagrad:
            np.random.RandomState(self.epoch).shuffle(order)
        self.epoch += 1
        for start in range(0, len(order), self.batch_size):
            indices = order[start:start + self.batch_size].tolist()
            if len(indices) == self.batch_size or not self.drop_last:
                yield indices

    def __len__(self):
        count = len(self.dataset) + int(not self.drop_last) * (self.batch_size - 1)
        return count // self.batch_size


class SortagradDistributedBatchSampler(DistributedBatchSampler):
    def __init__(self, dataset, batch_size, num_replicas=None, rank=None, drop_last=False,
                 sortagrad=False):
        super().__init__(dataset=dataset, batch_size=batch_size, num_replicas=num_replicas,
                         rank=rank, shuffle=True, drop_last=drop_last)
        self.sortagrad = sortagrad

    def __iter__(self):
        self.shuffle = self.epoch > 0 or not self.sortagrad
        yield from super().__iter__()
