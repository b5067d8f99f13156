"""The accelerator is made in another file; this one only enters its region."""

from library.training import prepare_accelerator


def train(args, model, optimizer, loader):
    accelerator = prepare_accelerator(args.mixed_precision)
    for image in loader:
        with accelerator.autocast():
            loss = model(image).mean()
        accelerator.backward(loss)
        optimizer.step()
