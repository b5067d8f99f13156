"""Three small models in four frameworks, each built from the same initial weights.

Every module has the same functions: ``mlp(weights)``, ``conv(weights)`` and ``transformer(weights)``
make a native model, ``optimizer(model)`` a native optimizer, ``loss(model, x, y)`` is what
``train_step`` takes, ``predict(model, x)`` gives class numbers. Nothing in them knows of mixed
precision.
"""
