import paddle.fluid as fluid


def optimizer_setting(params):
    optimizer = fluid.optimizer.Adam(learning_rate=params["lr"])
    return fluid.contrib.mixed_precision.decorate(
        optimizer, init_loss_scaling=params["scale"], use_dynamic_loss_scaling=params["dynamic"])


optimizer = optimizer_setting({"lr": 1e-3, "scale": 8.0, "dynamic": False})
optimizer.minimize(loss)
