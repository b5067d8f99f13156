"""Geometry, points, and the losses of a partial differential equation."""

import numpy as np
import tensorflow as tf

from . import config


class Rectangle:
    def __init__(self, *sides):
        self.low, self.high = (np.array(ends) for ends in zip(*sides))

    def random_points(self, n):
        points = self.low + (self.high - self.low) * np.random.rand(n, len(self.low))
        return points.astype(config.real(np))

    def boundary_points(self, n):
        points = self.random_points(n)
        points[:, 0] = np.where(np.random.rand(n) < 0.5, self.low[0], self.high[0])
        return points

    def initial_points(self, n):
        points = self.random_points(n)
        points[:, 1] = self.low[1]
        return points


class Derivatives:
    """First and second derivatives of the network's output."""

    def __init__(self, net, x):
        self.net, self.x = net, x
        with tf.GradientTape(persistent=True) as self.tape:
            self.tape.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                self.y = net(x, training=True)
            self.jacobian = inner.gradient(self.y, x)

    def hessian(self, i):
        return self.tape.gradient(self.jacobian, self.x)[:, i:i + 1]


class PDE:
    def __init__(self, geometry, pde, solution_at_start, num_domain=0, num_boundary=0, num_initial=0):
        self.geometry, self.pde = geometry, pde
        self.inner = geometry.random_points(num_domain)
        self.boundary = geometry.boundary_points(num_boundary)
        self.initial = geometry.initial_points(num_initial)
        self.targets = solution_at_start(self.initial).astype(config.real(np))

    def losses_train(self, net, loss_fn):
        grads = Derivatives(net, tf.convert_to_tensor(self.inner))
        residual = self.pde(grads.x, grads.y, grads)
        on_boundary = net(self.boundary, training=True)
        at_start = net(self.initial, training=True)
        return [
            loss_fn(tf.zeros_like(residual), residual),
            loss_fn(tf.zeros_like(on_boundary), on_boundary),
            loss_fn(self.targets, at_start),
        ]
