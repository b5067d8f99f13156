"""One look at a model and its optimizer, at the first call of a step: what would train wrongly in silence.

The first call alone, since a look costs more than a small step.
"""

from __future__ import annotations

from ampbridge.adapters.backend import Backend, Model, OwnPrecisionNotice
from ampbridge.adapters.calling_code import warn
from ampbridge.policies.policy import Policy
from ampbridge.training.decorate import policy_by_hand, under_another_policy
from ampbridge.training.recipe import Recipe


def look(backend: Backend, model: Model, recipe: Recipe) -> None:
    """Look at what a step under ``recipe`` is about to train; nothing has been changed yet.

    Raises:
        CallOrderError: if the user has decorated the model with a policy that is none of the recipe's.
    """
    decorated = policy_by_hand(backend, model)
    if decorated is not None and decorated not in recipe.policies:
        raise under_another_policy("train_step", recipe.plan, decorated)


def own_precision_notice(policy: Policy) -> OwnPrecisionNotice:
    """What warns of a framework's own mixed precision beside a step under ``policy``."""

    def notice(what: str, dtype: str, counts: bool) -> None:
        effect = (
            f"comes before the step's {policy!r}: what it covers follows it"
            if counts
            else f"does not reach into the step, which runs under {policy!r}"
        )
        level = "O1" if policy.level == "O0" else policy.level
        hint = f"leave it out; or leave it to train_step(..., policy='{level}:{dtype}')"
        warn(f"{what} {effect}.\nHint: {hint}")

    return notice
