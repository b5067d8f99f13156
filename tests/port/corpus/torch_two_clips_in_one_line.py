"""Two optimizers that clip in one line, each by its own limit."""

import torch
class Step:
    def __init__(self, parameters, most):
        self.parameters, self.most = parameters, most
        self.optimizer = torch.optim.Adam(parameters)
        self.scaler = torch.amp.GradScaler("cuda")
    def __call__(self, loss):
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.parameters, self.most)
        self.scaler.step(self.optimizer)
        self.scaler.update()
model, head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
of_model, of_head = Step(model.parameters(), 1000.0), Step(head.parameters(), 100.0)
for x in data:
    with torch.autocast("cuda"):
        loss = head(model(x)).sum()
    of_model(loss)
    of_head(loss)
