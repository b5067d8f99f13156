_base_ = ["../_base_/models/resnet50.py", "../_base_/default_runtime.py"]

optim_wrapper = dict(
    type="AmpOptimWrapper",
    loss_scale=dict(init_scale=2.0**14, growth_interval=500),
    accumulative_counts=4,
    optimizer=dict(type="AdamW", lr=1e-4, weight_decay=0.05),
    clip_grad=dict(max_norm=35, norm_type=2),
)
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=12)
