"""A ResNet for the handwritten digits, in mixed precision; -h lists the options."""

import argparse
import contextlib
import json
import logging
import os

import numpy as np
import paddle
import yaml
from paddle import nn
from paddle.io import DataLoader, Dataset, DistributedBatchSampler
from sklearn.datasets import load_digits

logger = logging.getLogger("train")

TEST_SIZE = 597


# -- data


class Digits(Dataset):
    """Images of 8 x 8 pixels from -1 to 1, and their labels."""

    def __init__(self, mode):
        super().__init__()
        digits = load_digits()
        order = np.random.RandomState(0).permutation(len(digits.target))
        chosen = order[TEST_SIZE:] if mode == "train" else order[:TEST_SIZE]
        self.images = (digits.images[chosen, None] / 8 - 1).astype("float32")
        self.labels = digits.target[chosen].astype("int64")

    def __getitem__(self, index):
        return self.images[index], self.labels[index]

    def __len__(self):
        return len(self.labels)


def build_loaders(cfg):
    train, test = Digits("train"), Digits("test")
    sampler = DistributedBatchSampler(
        train, batch_size=cfg["micro_batch"], shuffle=True, drop_last=True
    )
    return DataLoader(train, batch_sampler=sampler), DataLoader(test, batch_size=199)


# -- model


def conv_bn(inputs, outputs, kernel, stride=1):
    init = paddle.ParamAttr(initializer=nn.initializer.KaimingNormal())
    conv = nn.Conv2D(
        inputs, outputs, kernel, stride, kernel // 2, weight_attr=init, bias_attr=False
    )
    return nn.Sequential(conv, nn.BatchNorm2D(outputs))


class ResidualBlock(nn.Layer):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = conv_bn(inputs, outputs, 3, stride)
        self.conv2 = conv_bn(outputs, outputs, 3)
        self.relu = nn.ReLU()
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = conv_bn(inputs, outputs, 1, stride)

    def forward(self, x):
        shortcut = x if self.shortcut is None else self.shortcut(x)
        x = self.relu(self.conv1(x))
        return self.relu(self.conv2(x) + shortcut)


class ResNet(nn.Layer):
    def __init__(self, widths, blocks, classes=10):
        super().__init__()
        self.stem = nn.Sequential(conv_bn(1, widths[0], 3), nn.ReLU())
        stages, inputs = [], widths[0]
        for stage, width in enumerate(widths):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                stages.append(ResidualBlock(inputs, width, stride))
                inputs = width
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2D(1)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x):
        x = self.pool(self.stages(self.stem(x)))
        return self.head(paddle.flatten(x, 1))


# -- optimizer, schedule, average


def build_optimizer(cfg, model, steps):
    settings, schedule = cfg["optimizer"], cfg["schedule"]
    rate, warmup = settings["learning_rate"], schedule["warmup_steps"]
    scheduler = paddle.optimizer.lr.LinearWarmup(
        paddle.optimizer.lr.CosineAnnealingDecay(rate, T_max=steps - warmup),
        warmup_steps=warmup,
        start_lr=schedule["start_factor"] * rate,
        end_lr=rate,
    )
    decayed = {p.name for p in model.parameters() if p.ndim > 1}
    optimizer = paddle.optimizer.AdamW(
        learning_rate=scheduler,
        parameters=model.parameters(),
        weight_decay=settings["weight_decay"],
        apply_decay_param_fun=lambda name: name in decayed,
        grad_clip=nn.ClipGradByGlobalNorm(settings["clip_norm"]),
    )
    return optimizer, scheduler


class ModelEMA:
    """The exponential moving average of all weights and statistics, in float32."""

    def __init__(self, model, decay):
        self.decay = decay
        self.step = 0
        state = model.state_dict()
        self.average = {name: value.clone().astype("float32") for name, value in state.items()}

    @paddle.no_grad()
    def update(self, model):
        self.step += 1
        decay = min(self.decay, (1 + self.step) / (10 + self.step))
        for name, value in model.state_dict().items():
            value = value.astype("float32")
            self.average[name] = decay * self.average[name] + (1 - decay) * value

    @contextlib.contextmanager
    def applied_to(self, model):
        """The model has the averages in the block, and its own weights again after it."""
        own = {name: value.clone() for name, value in model.state_dict().items()}
        average = {name: value.astype(own[name].dtype) for name, value in self.average.items()}
        model.set_state_dict(average)
        yield
        model.set_state_dict(own)

    def state_dict(self):
        return {"step": self.step, "average": self.average}

    def set_state_dict(self, state):
        self.step, self.average = state["step"], state["average"]


# -- training


class Trainer:
    def __init__(self, cfg, output, pretrained=None):
        self.cfg = cfg
        self.checkpoint = os.path.join(output, "checkpoint.pdparams")
        self.train_loader, self.test_loader = build_loaders(cfg)
        self.accumulate = cfg["accumulate"]
        steps = cfg["epochs"] * (len(self.train_loader) // self.accumulate)
        self.model = ResNet(cfg["model"]["widths"], cfg["model"]["blocks"])
        if pretrained is not None:
            self.model.set_state_dict(paddle.load(pretrained))
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer, self.scheduler = build_optimizer(cfg, self.model, steps)
        self.ema = ModelEMA(self.model, cfg["ema"]["decay"])
        self.use_amp = cfg["amp"]["use_amp"]
        self.level = cfg["amp"]["level"]
        self.dtype = cfg["amp"]["dtype"]
        self.scaler = paddle.amp.GradScaler(
            enable=self.use_amp,
            init_loss_scaling=cfg["amp"]["init_loss_scaling"],
            incr_every_n_steps=cfg["amp"]["incr_every_n_steps"],
        )
        if self.use_amp and self.level == "O2":
            self.model, self.optimizer = paddle.amp.decorate(
                models=self.model, optimizers=self.optimizer, level="O2", dtype=self.dtype
            )
        self.epoch = 0
        self.history = []

    def auto_cast(self):
        return paddle.amp.auto_cast(
            enable=self.use_amp,
            custom_black_list=self.cfg["amp"]["custom_black_list"],
            level=self.level,
            dtype=self.dtype,
        )

    def train(self):
        for epoch in range(self.epoch, self.cfg["epochs"]):
            self.train_epoch(epoch)
            own = self.evaluate()
            with self.ema.applied_to(self.model):
                average = self.evaluate()
            logger.info("epoch %d: accuracy %.4f, of the average %.4f", epoch, own, average)
            self.save(epoch + 1)
        return {"history": self.history, "accuracy": own, "average_accuracy": average}

    def train_epoch(self, epoch):
        self.model.train()
        self.train_loader.batch_sampler.set_epoch(epoch)
        for i, (images, labels) in enumerate(self.train_loader):
            with self.auto_cast():
                logits = self.model(images)
                loss = self.criterion(logits, labels)
            self.scaler.scale(loss / self.accumulate).backward()
            scale = self.scaler.state_dict().get("scale", 1.0)
            if (i + 1) % self.accumulate == 0:
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.clear_grad()
                self.scheduler.step()
                self.ema.update(self.model)
            self.history.append({"loss": loss.item(), "scale": np.asarray(scale).item()})
            if i % 20 == 0:
                rate = self.optimizer.get_lr()
                logger.info("epoch %d, batch %d: loss %.4f, rate %.5f", epoch, i, loss, rate)

    @paddle.no_grad()
    def evaluate(self):
        """The share of the test images that are recognised."""
        self.model.eval()
        right = 0
        for images, labels in self.test_loader:
            with self.auto_cast():
                logits = self.model(images)
            right += (logits.argmax(1) == labels).sum().item()
        return right / TEST_SIZE

    def save(self, epoch):
        state = {
            "epoch": epoch,
            "model": self.model.state_dict(),
            "ema": self.ema.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }
        paddle.save(state, self.checkpoint)

    def resume(self):
        state = paddle.load(self.checkpoint)
        self.epoch = state["epoch"]
        self.model.set_state_dict(state["model"])
        self.ema.set_state_dict(state["ema"])
        self.optimizer.set_state_dict(state["optimizer"])  # and the scheduler
        self.scaler.load_state_dict(state["scaler"])


def parse_args():
    parser = argparse.ArgumentParser(description="Train a ResNet on digits.")
    parser.add_argument("-c", "--config", required=True, help="a YAML file")
    parser.add_argument("--output", default="output", help="the folder of checkpoint and history")
    parser.add_argument("--device", default=None, help="gpu:0, cpu; by default as Paddle chooses")
    parser.add_argument("--pretrained", default=None, help="weights to start from, .pdparams")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--eval", action="store_true", help="only evaluate the checkpoint")
    return parser.parse_args()


def main():
    args = parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    with open(args.config) as f:
        cfg = yaml.safe_load(f)
    if args.device is not None:
        paddle.set_device(args.device)
    paddle.seed(cfg["seed"])
    os.makedirs(args.output, exist_ok=True)
    trainer = Trainer(cfg, args.output, args.pretrained)
    if args.resume or args.eval:
        trainer.resume()
    if args.eval:
        logger.info("accuracy %.4f", trainer.evaluate())
        return
    result = trainer.train()
    with open(os.path.join(args.output, "history.json"), "w") as f:
        json.dump(result, f)


if __name__ == "__main__":
    main()
