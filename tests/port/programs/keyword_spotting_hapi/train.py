"""Keyword spotting with paddle.Model: python train.py --config configs/kws.json"""

import argparse
import json
import os

from kws.dataset import SpokenWords
from kws.estimator import Estimator
from kws.network import DepthwiseNet


def load_settings(path):
    with open(path, encoding="utf-8") as file:
        settings = json.load(file)
    epochs = os.environ.get("KWS_EPOCHS")
    if epochs is not None:
        settings["train"]["epochs"] = int(epochs)
    return settings


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default="configs/kws.json")
    parser.add_argument("--data", default=os.getenv("KWS_DATA", "./speech_commands"))
    args = parser.parse_args()

    settings = load_settings(args.config)
    train = settings["train"]
    estimator = Estimator(DepthwiseNet(**settings["network"]))
    estimator.compile(
        learning_rate=train["learning_rate"],
        clip=train.get("clip"),
        warmup=train.get("warmup"),
        amp=settings.get("amp"),
    )
    estimator.fit(
        SpokenWords(args.data, "train"),
        SpokenWords(args.data, "valid"),
        epochs=train["epochs"],
        batch_size=train["batch_size"],
        accumulate=train.get("accumulate", 1),
    )


if __name__ == "__main__":
    main()
