"""Static graphs of fluid: other defaults, fleet's."""
import paddle.fluid as fluid
from paddle.fluid.contrib import mixed_precision

optimizer = fluid.optimizer.Momentum(learning_rate=0.1, momentum=0.9)
lists = mixed_precision.AutoMixedPrecisionLists(custom_black_list={'reduce_mean'})
optimizer = mixed_precision.decorate(optimizer, lists, init_loss_scaling=128.0)
optimizer.minimize(avg_cost)
