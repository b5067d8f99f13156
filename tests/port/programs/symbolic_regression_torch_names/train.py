"""Symbolic regression: a transformer reads numbers and writes a formula. Converted from PyTorch."""

import paddle
from parsers import get_parser
from symbolic.envs import FormulaEnvironment
from symbolic.model import build_modules
from symbolic.trainer import Trainer


def main(params):
    paddle.seed(params.env_base_seed)
    env = FormulaEnvironment(params)
    modules = build_modules(env, params)
    trainer = Trainer(modules, env, params)
    for _ in range(params.max_epoch):
        trainer.inner_epoch = 0
        while trainer.inner_epoch < trainer.n_steps_per_epoch:
            trainer.enc_dec_step()
            trainer.iter()
        trainer.end_epoch()


if __name__ == "__main__":
    main(get_parser().parse_args())
