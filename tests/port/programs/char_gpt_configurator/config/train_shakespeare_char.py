# a baby GPT on the letters of Shakespeare

out_dir = "out-shakespeare-char"
eval_interval = 250
dataset = "shakespeare_char"
gradient_accumulation_steps = 1
batch_size = 64
block_size = 256

n_layer = 6
n_head = 6
n_embd = 384
dropout = 0.2

learning_rate = 1e-3
max_iters = 5000
min_lr = 1e-4
beta2 = 0.99
grad_clip = 0.5
warmup_iters = 100
