from paddle import Model, nn

amp_configs = {
    "level": "O2",
    "custom_white_list": {'conv2d'},
    "use_dynamic_loss_scaling": True,
}
amp_configs["incr_every_n_steps"] = 200
amp_configs.update(init_loss_scaling=2 ** 13, decr_every_n_nan_or_inf=2)
model = Model(network)
model.prepare(optimizer=optim, loss=nn.CrossEntropyLoss(), amp_configs=amp_configs)
