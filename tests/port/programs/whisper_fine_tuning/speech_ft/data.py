"""Spectrograms and token ids of utterances."""

import torch
from datasets import load_dataset
from torch.utils.data import DataLoader, Dataset
from whisper.audio import N_SAMPLES, log_mel_spectrogram, pad_or_trim


class AudioDataset(Dataset):
    def __init__(self, hu_dataset, tokenizer, n_mels):
        self.hu_dataset, self.tokenizer, self.n_mels = hu_dataset, tokenizer, n_mels

    def __len__(self):
        return len(self.hu_dataset)

    def __getitem__(self, index):
        record = self.hu_dataset[index]
        audio = torch.tensor(record["audio"]["array"], dtype=torch.float32)
        mel = log_mel_spectrogram(pad_or_trim(audio, N_SAMPLES), n_mels=self.n_mels)
        tokens = [*self.tokenizer.sot_sequence, *self.tokenizer.encode(record["text"]), self.tokenizer.eot]
        return mel, torch.tensor(tokens[:-1]), torch.tensor(tokens[1:])


def collate_fn(data):
    x, y_in, y_out = zip(*data)
    y_in = torch.nn.utils.rnn.pad_sequence(y_in, batch_first=True, padding_value=0)
    y_out = torch.nn.utils.rnn.pad_sequence(y_out, batch_first=True, padding_value=-100)
    return torch.stack(x), y_in, y_out


def get_dataloader(config, tokenizer, n_mels):
    dataset = load_dataset(config["train_dataset"], split=config["train_split_name"])
    return DataLoader(AudioDataset(dataset, tokenizer, n_mels), batch_size=config["batch_size"],
                      shuffle=True, num_workers=4, collate_fn=collate_fn, drop_last=True)
