"""python tts/train.py --config=conf/default.yaml --train-metadata=dump/train/norm/metadata.jsonl"""

import argparse
import logging
import os
import sys
from pathlib import Path

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import numpy as np
import paddle
import yaml
from paddle import DataParallel
from paddle import distributed as dist
from yacs.config import CfgNode

from tts.models.fastspeech2 import FastSpeech2, FastSpeech2Updater
from tts.training.optimizer import build_optimizers
from tts.training.trainer import Trainer


class Utterances(paddle.io.Dataset):
    """Phones, their durations, and the mel spectrogram of each."""

    def __init__(self, metadata, n_mels, size=10000):
        self.metadata, self.n_mels, self.size = metadata, n_mels, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        rng = np.random.RandomState(index)
        durations = rng.randint(1, 6, 40)
        durations[-1] += 240 - durations.sum()
        return {"text": rng.randint(1, 200, 40), "durations": durations,
                "pitch": rng.randn(40, 1).astype("float32"),
                "speech": rng.randn(240, self.n_mels).astype("float32")}


def train_sp(args, config):
    # decides device type and whether to run in parallel
    paddle.set_device("gpu" if args.ngpu > 0 else "cpu")
    if dist.get_world_size() > 1:
        dist.init_parallel_env()
    paddle.seed(config.seed)

    # dataloader has been too verbose
    logging.getLogger("DataLoader").disabled = True
    dataset = Utterances(args.train_metadata, config.n_mels)
    sampler = paddle.io.DistributedBatchSampler(dataset, config.batch_size, shuffle=True, drop_last=True)
    train_dataloader = paddle.io.DataLoader(dataset, batch_sampler=sampler, num_workers=config.num_workers)

    model = FastSpeech2(idim=200, odim=config.n_mels, **config["model"])
    if dist.get_world_size() > 1:
        model = DataParallel(model)
    optimizer = build_optimizers(model, **config["optimizer"])

    output_dir = Path(args.output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    updater = FastSpeech2Updater(
        model=model,
        optimizer=optimizer,
        dataloader=train_dataloader,
        output_dir=output_dir,
        **config["updater"], )
    trainer = Trainer(updater, (config.max_epoch, "epoch"), output_dir)
    trainer.extend(lambda t: logging.info(t.updater.msg), trigger=(10, "iteration"))
    trainer.run()


def main():
    parser = argparse.ArgumentParser(description="Train a FastSpeech2 model.")
    parser.add_argument("--config", type=str, help="fastspeech2 config file.")
    parser.add_argument("--train-metadata", type=str, help="training data.")
    parser.add_argument("--output-dir", type=str, default="exp/default", help="output dir.")
    parser.add_argument("--ngpu", type=int, default=1, help="if ngpu=0, use cpu.")
    args = parser.parse_args()

    with open(args.config) as f:
        config = CfgNode(yaml.safe_load(f))
    print(config)

    # dispatch
    if args.ngpu > 1:
        dist.spawn(train_sp, (args, config), nprocs=args.ngpu)
    else:
        train_sp(args, config)


if __name__ == "__main__":
    main()
