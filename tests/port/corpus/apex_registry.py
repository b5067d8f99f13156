import torch
import torch.nn.functional as F
import apex.amp

apex.amp.register_float_function(torch, "sigmoid")
apex.amp.register_half_function(F, "gelu")

model, [opt_g, opt_d] = apex.amp.initialize(
    [gen, disc],
    [opt_g, opt_d],
    opt_level="O1",
    num_losses=2,
    min_loss_scale=1.0,
    max_loss_scale=2.0**16,
)
for batch in loader:
    loss = model(batch)
    with apex.amp.scale_loss(loss, opt_g, loss_id=0) as scaled:
        scaled.backward()
    opt_g.step()
