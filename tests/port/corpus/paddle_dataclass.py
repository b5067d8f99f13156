import dataclasses

import paddle


@dataclasses.dataclass
class Config:
    level: str = "O1"
    scale: float = 2.0 ** 15
    black: list = dataclasses.field(default_factory=lambda: ["exp"])
    accumulate: int = 1


def train(config: Config):
    black = config.black + ["log"]
    for name in ("square",):
        black.append(name)
    scaler = paddle.amp.GradScaler(init_loss_scaling=config.scale)
    for x in loader:
        for micro in range(config.accumulate):
            with paddle.amp.auto_cast(level=config.level, custom_black_list=set(black)):
                loss = model(x[micro]) / config.accumulate
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


train(Config(level="O2", accumulate=3))
