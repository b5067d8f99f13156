import os

vendor = "nvidia"
per_device_train_batch_size = 4
gradient_accumulation_steps = int(os.environ.get("ACCUMULATION", "8"))

fp16 = True
fp16_opt_level = "O2"
scale_loss = 1024.0
amp_master_grad = True
