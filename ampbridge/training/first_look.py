"""One look at a model and its optimizer, at the first call of a step: what would train wrongly in silence.

The first call alone, since a look costs more than a small step.
"""

from __future__ import annotations

from ampbridge.adapters.backend import Backend, Model, Optimizer
from ampbridge.training.decorate import policy_by_hand, under_another_policy
from ampbridge.training.recipe import Recipe


def look(backend: Backend, model: Model, optimizer: Optimizer, recipe: Recipe) -> None:
    """Look at what a step under ``recipe`` is about to train; nothing has been changed yet.

    Raises:
        CallOrderError: if the user has decorated the model with a policy that is none of the recipe's.
    """
    decorated = policy_by_hand(backend, model)
    if decorated is not None and decorated not in recipe.policies:
        raise under_another_policy("train_step", recipe.plan, decorated)
