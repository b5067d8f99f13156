import paddle
import paddle.distributed.fleet as fleet

strategy = fleet.DistributedStrategy()
strategy.amp = True
strategy.amp_configs = {"init_loss_scaling": 32768, "use_pure_fp16": True}
optimizer = fleet.distributed_optimizer(paddle.optimizer.Momentum(0.1), strategy=strategy)
optimizer.minimize(loss)
