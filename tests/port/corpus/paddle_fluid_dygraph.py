"""Paddle 1.8."""
import paddle.fluid as fluid
from paddle.fluid.dygraph import AmpScaler

with fluid.dygraph.guard(fluid.CUDAPlace(0)):
    net = MobileNet()
    optimizer = fluid.optimizer.SGDOptimizer(learning_rate=0.01, parameter_list=net.parameters())
    scaler = AmpScaler(init_loss_scaling=1024)
    for batch_id, data in enumerate(train_reader()):
        with fluid.dygraph.amp_guard():
            loss = fluid.layers.mean(net(data))
            scaled = scaler.scale(loss)
            scaled.backward()
            scaler.minimize(optimizer, scaled)
        net.clear_gradients()
