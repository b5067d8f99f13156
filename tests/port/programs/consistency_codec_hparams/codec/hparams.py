import importlib.util
from dataclasses import dataclass, field
from typing import List, Optional


@dataclass
class HParams:
    # TRAINING
    batch_size: int = 16
    lr: float = 0.0001
    final_lr: float = 0.000001
    warmup_steps: int = 10000
    accumulate_gradients: int = 4  # batches whose gradients are accumulated before an update
    total_iters: int = 800000
    iters_per_epoch: int = 10000
    mixed_precision: bool = True  # float16
    compile_model: bool = True
    multi_gpu: bool = False
    checkpoint_path: str = "checkpoints"
    load_path: Optional[str] = None
    seed: int = 42

    # EXPONENTIAL MOVING AVERAGE
    enable_ema: bool = True
    ema_momentum: float = 0.9999

    # DATA
    data_paths: List[str] = field(default_factory=lambda: ["./audio"])
    data_length: int = 64
    hop: int = 512

    # MODEL AND DIFFUSION
    base_channels: int = 64
    sigma_min: float = 0.002
    sigma_max: float = 80.0
    rho: float = 7.0
    base_step: float = 0.1

    def update(self, config_dict):
        for key, value in config_dict.items():
            if hasattr(self, key):
                setattr(self, key, value)


hparams = HParams()


def load_config(config_path):
    spec = importlib.util.spec_from_file_location("config", config_path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    hparams.update({k: v for k, v in vars(module).items() if not k.startswith("__")})
    return hparams
