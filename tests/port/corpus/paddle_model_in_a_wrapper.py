"""What an unknown wrapper gives back is still prepared."""

import paddle, outside
model = outside.wrap(paddle.Model(network))
model.prepare(optimizer, loss, amp_configs={"level": "O2", "init_loss_scaling": 8192})
