from lightning.fabric import Fabric

fabric = Fabric(accelerator="cuda", devices=1, precision="bf16-mixed")
fabric.launch()
model, optimizer = fabric.setup(model, optimizer)
for i, batch in enumerate(loader):
    is_accumulating = (i + 1) % 16 != 0
    with fabric.no_backward_sync(model, enabled=is_accumulating):
        loss = model(batch)
        fabric.backward(loss / 16)
    if not is_accumulating:
        fabric.clip_gradients(model, optimizer, max_norm=2.0)
        optimizer.step()
        optimizer.zero_grad()
