import json

import numpy as np
import paddle
from paddle.io import Dataset


class ASRDataset(Dataset):
    def __init__(self, preprocess_configs, data_manifest, vocab_filepath, min_duration=0,
                 max_duration=20, augmentation_config='{}', train=False):
        super().__init__()
        self.feature_dim = preprocess_configs.n_mels
        self.augmentation = json.loads(augmentation_config)
        self.train = train
        with open(vocab_filepath, encoding='utf-8') as f:
            self.vocab_list = [line.rpartition('\t')[0] for line in f]
        self.vocab_size = len(self.vocab_list)
        self.index = {token: i for i, token in enumerate(self.vocab_list)}
        with open(data_manifest, encoding='utf-8') as f:
            samples = [json.loads(line) for line in f]
        self.samples = [s for s in samples if min_duration <= s['duration'] <= max_duration]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, idx):
        sample = self.samples[idx]
        features = np.load(sample['features']).astype('float32')
        if self.train and self.augmentation.get('mask'):
            start = np.random.randint(0, max(len(features) - 20, 1))
            features[start:start + 20] = 0.0
        text = [self.index[token] for token in sample['text'].replace(' ', '|') if token in self.index]
        return features, np.array(text, dtype='int32')


def collate_fn(batch):
    batch = sorted(batch, key=lambda sample: len(sample[0]), reverse=True)
    lengths = [len(features) for features, _ in batch]
    label_lengths = [len(text) for _, text in batch]
    inputs = np.zeros((len(batch), max(lengths), batch[0][0].shape[1]), dtype='float32')
    labels = np.full((len(batch), max(label_lengths)), -1, dtype='int32')
    for i, (features, text) in enumerate(batch):
        inputs[i, :len(features)] = features
        labels[i, :len(text)] = text
    arrays = (inputs, labels, np.array(lengths), np.array(label_lengths))
    return tuple(paddle.to_tensor(array) for array in arrays)
