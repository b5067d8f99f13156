from mmengine.optim import AmpOptimWrapper

wrapper = AmpOptimWrapper(loss_scale=512.0, dtype="bfloat16", optimizer=optimizer)
for data in loader:
    with wrapper.optim_context(model):
        loss = model(data)
    wrapper.update_params(loss)
