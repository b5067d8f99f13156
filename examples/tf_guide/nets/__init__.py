"""The guide's classifier in five frameworks. Nothing in the models knows of mixed precision.

Each module has ``classifier(weights)``, ``optimizer(model)``, ``loss(model, x, y)`` as
``train_step`` takes it and ``predict(model, x)``, which gives probabilities in the dtype in which
they left the model. Frameworks that have a ready-made ``fit`` have it here too.
"""
