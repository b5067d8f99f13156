import paddle

kept = []
for name, layer in model.named_sublayers():
    if "router" in name:
        kept.append(layer)
model = paddle.amp.decorate(models=model, level="O2", dtype="bfloat16", excluded_layers=kept)
with paddle.amp.auto_cast(level="O2", dtype="bfloat16"):
    model(x).mean().backward()
