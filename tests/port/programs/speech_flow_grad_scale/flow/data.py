import torch
from torch.nn.utils.rnn import pad_sequence


class Buckets:
    """Batches of utterances of similar length, up to a number of frames."""

    def __init__(self, utterances, max_frames):
        self.batches, batch, frames = [], [], 0
        for utterance in sorted(utterances, key=lambda u: len(u["features"])):
            if batch and frames + len(utterance["features"]) > max_frames:
                self.batches.append(batch)
                batch, frames = [], 0
            batch.append(utterance)
            frames += len(utterance["features"])
        if batch:
            self.batches.append(batch)

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        for i in torch.randperm(len(self.batches)).tolist():
            yield self.collate(self.batches[i])

    def longest(self, count):
        return [self.collate(batch) for batch in self.batches[-count:]]

    @staticmethod
    def collate(batch):
        return {
            "tokens": pad_sequence([u["tokens"] for u in batch], batch_first=True),
            "features": pad_sequence([u["features"] for u in batch], batch_first=True),
            "features_lens": torch.tensor([len(u["features"]) for u in batch]),
        }


class TtsDataModule:
    def __init__(self, args):
        self.args = args

    @classmethod
    def add_arguments(cls, parser):
        group = parser.add_argument_group(title="TTS data")
        group.add_argument("--manifest", type=str, default="data/train.pt")
        group.add_argument("--max-duration", type=int, default=500, help="seconds of a batch")

    def train_dataloader(self):
        return Buckets(torch.load(self.args.manifest), max_frames=self.args.max_duration * 94)
