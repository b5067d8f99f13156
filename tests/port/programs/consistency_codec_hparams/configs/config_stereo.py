# MAIN PARAMETERS
batch_size = 8
lr = 0.0001
total_iters = 1000000
data_paths = ["/data/music/audio"]

# TRAINING
accumulate_gradients = 2
mixed_precision = True
compile_model = True
checkpoint_path = "checkpoints_stereo"

# EXPONENTIAL MOVING AVERAGE
enable_ema = True
ema_momentum = 0.9999
