"""SimpleNet in five frameworks. Nothing in these modules knows of mixed precision.

Each has ``simplenet(weights)``, ``optimizer(model, learning_rate)``, ``loss(model, x, y)`` as
``train_step`` takes it, ``tensor(array)`` on the device that is used, ``device()`` its name, and
``wait()``, which returns when the device has done all that it was given: clocks need it.
"""
