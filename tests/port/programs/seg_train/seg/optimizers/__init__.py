from .optimizer import Adam, AdamW, BaseOptimizer, Momentum
