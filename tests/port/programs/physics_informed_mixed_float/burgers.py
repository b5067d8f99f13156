"""Burgers' equation, u_t + u u_x = nu u_xx, in mixed precision."""

import numpy as np
import tensorflow as tf

from pinn import config
from pinn.data import PDE, Rectangle
from pinn.model import Model
from pinn.nn import FNN

config.set_random_seed(1)
config.set_default_float("mixed")

NU = 0.01 / np.pi


def pde(x, y, grads):
    """Residual of the equation."""
    dy_x, dy_t = grads.jacobian[:, 0:1], grads.jacobian[:, 1:2]
    return dy_t + y * dy_x - NU * grads.hessian(0)


def solution_at_start(x):
    return -np.sin(np.pi * x[:, 0:1])


def main():
    geometry = Rectangle((-1.0, 1.0), (0.0, 0.99))
    data = PDE(geometry, pde, solution_at_start, num_domain=2540, num_boundary=80, num_initial=160)
    net = FNN([2] + [20] * 3 + [1], "tanh", "Glorot normal")

    model = Model(data, net)
    model.compile("adam", lr=1e-3, decay=("inverse time", 2000, 0.9), loss_weights=[1.0, 10.0, 10.0])
    history = model.train(iterations=15000, display_every=1000)
    print("last loss", history[-1])

    x = geometry.random_points(1000)
    y = model.predict(x)
    print("largest |u|", np.abs(y).max(), y.dtype, tf.keras.mixed_precision.global_policy())


if __name__ == "__main__":
    main()
