"""The author's names are not those that eager Paddle looks up: nothing is denied."""
from paddle import amp

for data, label in loader():
    with amp.auto_cast(True, None, {"matmul"}, "O1", "float16"):
        loss = loss_fn(model(data), label)
    loss.backward()
    optimizer.step()
