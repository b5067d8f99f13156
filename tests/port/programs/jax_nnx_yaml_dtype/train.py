"""Train a small network of nnx as its configuration says."""

import argparse

import jax.numpy as jnp
import optax
import yaml
from data import batches
from flax import nnx
from net import Net


def make_optimizer(model, settings):
    schedule = optax.cosine_decay_schedule(settings["learning_rate"], 1000)
    tx = optax.chain(optax.clip_by_global_norm(settings["clip"]), optax.adamw(schedule))
    if settings["accumulate"] > 1:
        tx = optax.MultiSteps(tx, every_k_schedule=settings["accumulate"])
    return nnx.Optimizer(model, tx, wrt=nnx.Param)


@nnx.jit
def train_step(model, optimizer, metrics, batch):
    def loss_fn(model):
        logits = model(batch["tokens"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
        return losses.mean(), logits

    (loss, logits), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model)
    metrics.update(loss=loss, logits=logits, labels=batch["labels"])
    optimizer.update(model, grads)
    return loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default="config.yaml")
    args = parser.parse_args()
    with open(args.config) as file:
        config = yaml.safe_load(file)
    settings = config["model"]
    dtype = jnp.dtype(settings["dtype"])
    model = Net(settings["width"], settings["depth"], dtype, rngs=nnx.Rngs(0))
    optimizer = make_optimizer(model, config["optimizer"])
    metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"), accuracy=nnx.metrics.Accuracy())
    for number, batch in zip(range(config["steps"]), batches()):
        train_step(model, optimizer, metrics, batch)
        if number % 100 == 0:
            print(number, metrics.compute())
            metrics.reset()


if __name__ == "__main__":
    main()
