"""What a user's configuration need not say."""

defaults = {
    "model_type": "GNNModel",
    "epochs": 1,
    "dense_lr": 0.000005,
    "emb_size": 64,
    "neg_num": 5,
    "batch_size": 4096,
    "walk_batches": 100000,
    "save_model_interval": 1,
    "loss_type": "nce",
    "gradient_merge": None,
    "amp": {
        "init_loss_scaling": 32768.0,
        "use_dynamic_loss_scaling": True,
    },
}
