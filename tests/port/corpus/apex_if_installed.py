try:
    from apex import amp
except ImportError:
    raise ImportError("Please install apex")

model, optimizer = amp.initialize(model, optimizer, opt_level="O3", keep_batchnorm_fp32=True)
for step, batch in enumerate(loader):
    loss = model(**batch)[0] / 8
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    if (step + 1) % 8 == 0:
        optimizer.step()
        optimizer.zero_grad()
