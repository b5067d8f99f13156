"""Images with their captions, and where each was cropped."""

import os
import random

import numpy as np
import paddle
from datasets import load_dataset
from paddle.io import DataLoader
from paddle.vision import transforms
from paddle.vision.transforms import functional as TF

DATASET_NAME_MAPPING = {"pokemon-blip-captions": ("image", "text")}


def tokenize_prompt(tokenizer, prompt):
    text_inputs = tokenizer(
        prompt,
        padding="max_length",
        max_length=tokenizer.model_max_length,
        truncation=True,
        return_tensors="pd",
    )
    return text_inputs.input_ids


def tokenize_captions(examples, caption_column, tokenizers, is_train=True):
    captions = []
    for caption in examples[caption_column]:
        if isinstance(caption, str):
            captions.append(caption)
        elif isinstance(caption, (list, np.ndarray)):
            captions.append(random.choice(caption) if is_train else caption[0])
        else:
            raise ValueError(
                f"Caption column `{caption_column}` should contain either strings or lists of strings."
            )
    return [tokenize_prompt(tokenizer, captions) for tokenizer in tokenizers]


class Preprocessing:
    def __init__(self, args, tokenizers, image_column, caption_column):
        self.args, self.tokenizers = args, tokenizers
        self.image_column, self.caption_column = image_column, caption_column
        self.resize = transforms.Resize(args.resolution, interpolation="bilinear")
        self.normalize = transforms.Compose(
            [transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.5] * 3)]
        )

    def __call__(self, examples):
        args = self.args
        original_sizes, all_images, crop_top_lefts = [], [], []
        for image in (image.convert("RGB") for image in examples[self.image_column]):
            original_sizes.append((image.height, image.width))
            image = self.resize(image)
            if args.center_crop:
                y1 = max(0, int(round((image.height - args.resolution) / 2.0)))
                x1 = max(0, int(round((image.width - args.resolution) / 2.0)))
            else:
                y1 = random.randint(0, image.height - args.resolution)
                x1 = random.randint(0, image.width - args.resolution)
            image = TF.crop(image, y1, x1, args.resolution, args.resolution)
            if args.random_flip and random.random() < 0.5:
                x1 = image.width - x1
                image = TF.hflip(image)
            crop_top_lefts.append((y1, x1))
            all_images.append(self.normalize(image))
        examples["original_sizes"] = original_sizes
        examples["crop_top_lefts"] = crop_top_lefts
        examples["pixel_values"] = all_images
        one, two = tokenize_captions(examples, self.caption_column, self.tokenizers)
        examples["input_ids_one"], examples["input_ids_two"] = one, two
        return examples


def collate_fn(examples):
    pixel_values = paddle.stack([example["pixel_values"] for example in examples])
    return {
        "pixel_values": pixel_values.astype("float32"),
        "input_ids_one": paddle.stack([example["input_ids_one"] for example in examples]),
        "input_ids_two": paddle.stack([example["input_ids_two"] for example in examples]),
        "original_sizes": [example["original_sizes"] for example in examples],
        "crop_top_lefts": [example["crop_top_lefts"] for example in examples],
    }


def build_train_dataloader(args, tokenizers):
    if args.dataset_name is not None:
        dataset = load_dataset(args.dataset_name, cache_dir=args.cache_dir)
    else:
        files = {"train": os.path.join(args.train_data_dir, "**")}
        dataset = load_dataset("imagefolder", data_files=files, cache_dir=args.cache_dir)
    columns = DATASET_NAME_MAPPING.get(args.dataset_name, (args.image_column, args.caption_column))
    for column in columns:
        if column not in dataset["train"].column_names:
            raise ValueError(f"column {column} needs to be one of {dataset['train'].column_names}")
    if args.max_train_samples is not None:
        order = dataset["train"].shuffle(seed=args.seed)
        dataset["train"] = order.select(range(args.max_train_samples))
    train_dataset = dataset["train"].with_transform(Preprocessing(args, tokenizers, *columns))
    return DataLoader(
        train_dataset,
        shuffle=True,
        collate_fn=collate_fn,
        batch_size=args.train_batch_size,
        num_workers=args.dataloader_num_workers,
    )
