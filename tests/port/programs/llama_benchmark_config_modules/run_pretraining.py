"""Benchmark case: pretraining of a small LLaMA. All settings are in config/."""

from dataclasses import dataclass

import config
import paddle
from paddle.distributed import fleet
from train import adapter
from train.model import Llama, random_tokens


@dataclass
class TrainingState:
    micro_steps: int = 0
    global_steps: int = 0
    loss: float = 0.0


class Trainer:
    def __init__(self, config, model, optimizer, scaler, state):
        self.config = config
        self.model = model
        self.optimizer = optimizer
        self.scaler = scaler
        self.state = state

    def train(self, batches):
        state = self.state
        self.model.train()
        for tokens in batches:
            state.micro_steps += 1
            if self.train_one_step(tokens):
                state.global_steps += 1
            if state.global_steps >= self.config.max_steps:
                break

    def train_one_step(self, tokens):
        with adapter.autocast_smart_context_manager(self.config):
            loss = self.model(tokens)
        self.state.loss = float(loss)
        return adapter.backward(
            self.config, self.state.micro_steps, loss, self.optimizer, self.scaler
        )


def main():
    paddle.set_device(config.device)
    if config.use_hybrid_parallel:
        strategy = fleet.DistributedStrategy()
        strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": 1, "pp_degree": 1}
        fleet.init(is_collective=True, strategy=strategy)
    paddle.seed(config.seed)

    model = adapter.convert_model(config, Llama(config))
    optimizer = adapter.create_optimizer(config, model)
    scaler = adapter.create_grad_scaler(config)
    if config.fp16:
        model, optimizer = adapter.model_to_fp16(config, model, optimizer)
    if config.use_hybrid_parallel:
        model = fleet.distributed_model(model)
        optimizer = fleet.distributed_optimizer(optimizer)

    state = TrainingState()
    trainer = Trainer(config, model, optimizer, scaler, state)
    trainer.train(random_tokens(config))
    print(f"{state.global_steps} steps, {state.micro_steps} batches, loss {state.loss:.4f}")


if __name__ == "__main__":
    main()
