"""The region of the evaluation says something else; the training counts."""
import paddle


def score(model, loader):
    with paddle.no_grad():
        for x in loader:
            with paddle.amp.auto_cast(level="O2", dtype="bfloat16"):
                model(x)


def train(model, loader):
    scaler = paddle.amp.GradScaler()
    for x in loader:
        with paddle.amp.auto_cast():
            loss = model(x)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    score(model, valid_loader)


train(model, loader)
