"""Data parallel with fleet: a wrapped scaler stays a scaler."""
import paddle
import paddle.distributed as dist
from paddle.distributed import fleet


def main():
    fleet.init(is_collective=True, strategy=fleet.DistributedStrategy())
    model = fleet.distributed_model(build())
    scaler = paddle.amp.GradScaler(init_loss_scaling=32768)
    scaler = fleet.distributed_scaler(scaler)
    optimizer = fleet.distributed_optimizer(make_optimizer(model))
    acc_steps = 8
    for step, (x, y) in enumerate(loader):
        with paddle.amp.auto_cast(enable=True, custom_black_list=["reduce_sum", "c_softmax_with_cross_entropy"], level="O1"):
            loss = criterion(model(x), y)
            loss = loss / acc_steps
        scaler.scale(loss).backward()
        if not (step + 1) % acc_steps:
            scaler.step(optimizer)
            scaler.update()
            optimizer.clear_grad()


if __name__ == "__main__":
    dist.spawn(main)
