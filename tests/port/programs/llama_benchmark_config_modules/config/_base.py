# =========================================================
# Required
# =========================================================
vendor: str = None
device: str = "gpu"
seed: int = 42

# =========================================================
# Model
# =========================================================
vocab_size: int = 32000
hidden_size: int = 512
intermediate_size: int = 1376
num_hidden_layers: int = 4
num_attention_heads: int = 8
max_seq_length: int = 512

# =========================================================
# Training
# =========================================================
max_steps: int = 1000
per_device_train_batch_size: int = 1
gradient_accumulation_steps: int = 1
learning_rate: float = 0.0001
weight_decay: float = 0.01
max_grad_norm: float = 1.0
use_hybrid_parallel: bool = True

# =========================================================
# Precision
# =========================================================
fp16: bool = False
bf16: bool = False
fp16_opt_level: str = "O1"
scale_loss: float = 32768.0
amp_master_grad: bool = False
amp_custom_white_list = None
amp_custom_black_list = None
