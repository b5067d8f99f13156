"""Training of node embeddings on random walks: python src/cluster_train.py -m user_configs/metapath.yaml"""

import argparse
import os
import sys
import time

sys.path.append(os.path.dirname(os.path.abspath(__file__)))

import numpy as np
import paddle
import paddle.distributed.fleet as fleet

import models as Model
import util_config
from distributed_program import get_strategy

paddle.enable_static()


def parse_args():
    parser = argparse.ArgumentParser("graph representation learning")
    parser.add_argument("-m", "--config_yaml", type=str, required=True, help="config file path")
    parser.add_argument("-o", "--opt", nargs="*", type=str)
    args = parser.parse_args()
    config = util_config.prepare_config(args.config_yaml)
    config.local_model_path = "./model"
    config.max_steps = config.max_steps if config.max_steps else 0
    config.return_weight = config.return_weight if config.return_weight else False
    if args.opt:
        for parameter in args.opt:
            key, value = parameter.strip().split("=")
            setattr(config, key, int(value))
    return config


def walks(config):
    """Pairs of nodes of a window, with negatives; stands in for the graph engine."""
    for _ in range(config.walk_batches):
        src = np.random.randint(0, config.num_nodes, (config.batch_size, 1))
        dst = np.random.randint(0, config.num_nodes, (config.batch_size, 1 + config.neg_num))
        yield {"src": src, "dst": dst}


class Main:
    def __init__(self, config):
        self.config = config
        self.exe = None

    def network(self):
        startup_program = paddle.static.Program()
        train_program = paddle.static.Program()
        with paddle.static.program_guard(train_program, startup_program):
            with paddle.utils.unique_name.guard():
                self.model_dict = getattr(Model, self.config.model_type)(config=self.config)
        self.model_dict.startup_program = startup_program
        self.model_dict.train_program = train_program

        strategy = get_strategy(self.config)
        # amp see: DistributedStrategy of fleet
        amp_configs = getattr(self.config, "amp", None)
        if amp_configs:
            strategy.amp = True
            strategy.amp_configs = amp_configs

        with paddle.static.program_guard(train_program, startup_program):
            adam = paddle.optimizer.Adam(learning_rate=self.config.dense_lr)
            optimizer = fleet.distributed_optimizer(adam, strategy=strategy)
            optimizer.minimize(self.model_dict.loss, startup_program)

    def run(self):
        place = paddle.CUDAPlace(int(os.getenv("FLAGS_selected_gpus", "0")))
        self.exe = paddle.static.Executor(place)
        fleet.init(is_collective=True)
        self.network()
        self.exe.run(self.model_dict.startup_program)
        if self.config.warm_start_from:
            paddle.static.load(self.model_dict.train_program, self.config.warm_start_from, self.exe)
        self.train()

    def train(self):
        steps = 0
        for epoch in range(1, self.config.epochs + 1):
            epoch_begin, epoch_loss = time.time(), 0.0
            for batch in walks(self.config):
                (loss,) = self.exe.run(
                    self.model_dict.train_program, feed=batch, fetch_list=[self.model_dict.loss])
                epoch_loss += float(np.mean(loss))
                steps += 1
                if 0 < self.config.max_steps <= steps:
                    return
            print(f"Train: Epoch {epoch} | loss {epoch_loss:.6f} | {time.time() - epoch_begin:.1f} s")
            if epoch % self.config.save_model_interval == 0 and fleet.worker_index() == 0:
                paddle.static.save(self.model_dict.train_program, self.config.local_model_path)


if __name__ == "__main__":
    Main(parse_args()).run()
