"""Batches of masked language modelling."""

import numpy as np
import paddle


class PretrainingDataset(paddle.io.Dataset):
    def __init__(self, input_dir, max_seq_len, num_samples, seed):
        self.input_dir, self.max_seq_len, self.num_samples = input_dir, max_seq_len, num_samples
        self.rng = np.random.RandomState(seed)

    def __len__(self):
        return self.num_samples

    def __getitem__(self, index):
        ids = self.rng.randint(5, 40000, self.max_seq_len)
        masked = np.sort(self.rng.choice(self.max_seq_len, self.max_seq_len // 8, replace=False))
        labels, ids[masked] = ids[masked].copy(), 3
        segments = (np.arange(self.max_seq_len) > self.max_seq_len // 2).astype("int64")
        return ids, segments, np.ones(self.max_seq_len, "int64"), masked, labels, self.rng.randint(0, 2)


def collate(samples):
    ids, segments, mask, positions, labels, order = (np.stack(field) for field in zip(*samples))
    length = ids.shape[1]
    positions = (positions + length * np.arange(len(samples))[:, None]).reshape([-1])
    return ids, segments, mask, positions, labels.reshape([-1, 1]), order.reshape([-1, 1])


def create_pretrained_dataset(args, worker_num, worker_index):
    def loader(num_samples, seed):
        dataset = PretrainingDataset(args.input_dir, args.max_seq_len, num_samples, seed)
        sampler = paddle.io.DistributedBatchSampler(
            dataset, args.micro_batch_size, num_replicas=worker_num, rank=worker_index, drop_last=True)
        return paddle.io.DataLoader(dataset, batch_sampler=sampler, collate_fn=collate)

    return loader(args.global_batch_size * args.max_steps, args.seed), loader(10 ** 5, args.seed + 1)
