"""One look at what a step trains, for what would go wrong in silence: at its first call and after a change.

Not at each call: a look takes longer than a small step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from operator import attrgetter, is_

from ampbridge.adapters.arguments import check_masters, made_anew
from ampbridge.adapters.backend import Array, Backend, Model, Optimizer
from ampbridge.adapters.calling_code import warn
from ampbridge.errors import first_of
from ampbridge.policies.policy import Policy
from ampbridge.scaling.scaled_once import scaled_by
from ampbridge.training.decorate import names_by_id, policy_by_hand, warn_of_low_parameters


def warn_of_own_precision(policy: Policy, what: str, dtype: str, counts: bool) -> None:
    """Warn of a framework's own mixed precision beside a step under ``policy``: an ``OwnPrecisionNotice``."""
    if dtype == policy.compute_dtype:
        return
    effect = (
        f"comes before the step's {policy!r}: what it covers follows it"
        if counts
        else f"does not reach into the step, which runs under {policy!r}"
    )
    level = "O1" if policy.level == "O0" else policy.level
    hint = f"leave it out; or leave it to train_step(..., policy='{level}:{dtype}')"
    warn(f"{what} {effect}.\nHint: {hint}")


_dtype = attrgetter("dtype")


class LookAtGradients:
    """Looks at a step's gradients if dtypes, or the number of missing gradients, have changed."""

    def __init__(self, backend: Backend, model: Model, optimizer: Optimizer) -> None:
        self._backend, self._model, self._optimizer = backend, model, optimizer
        self._before: object = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The block in which the first step is taken."""
        with scaled_by.during("train_step"), self._backend.noting_kept_calls() as self._called:
            yield

    def __call__(
        self, policy: Policy, trained: Sequence[Array], grads: Sequence[Array], *, scaled: bool
    ) -> None:
        """``grads`` are those of ``trained``, in a step under ``policy``. Also checks the masters."""
        now = tuple(map(_dtype, trained)), sum(map(is_, grads, repeat(None))), scaled
        if now == self._before:
            return
        if scaled:
            check_masters(self._backend, self._optimizer, trained, grads)
        is_first, self._before = self._before is None, now
        self._warn_of_what_is_left_out(trained, grads)
        if is_first:
            self._warn_of_what_keep_does_not_reach(trained, grads)
        has_been_said = is_first and policy_by_hand(self._backend, self._model) is not None
        if not has_been_said:
            warn_of_low_parameters(self._backend, self._model, policy)

    def _warn_of_what_keep_does_not_reach(
        self, trained: Sequence[Array], grads: Sequence[Array]
    ) -> None:
        """Warn if parameters of a kept layer are used, and neither it nor a layer around it is called."""
        backend, model = self._backend, self._model
        called, decoration = self._called(), backend.decoration(model, None)
        if called is None or decoration is None:
            return
        inside = {id(p) for layer in decoration.kept for p in backend.parameters(layer)}
        for layer in backend.layers(model) if inside else ():
            if id(layer.layer) in called:
                inside.difference_update(map(id, backend.parameters(layer.layer)))
        missed = inside & {id(p) for p, g in zip(trained, grads, strict=True) if g is not None}
        if missed:
            names = [name for key, name in names_by_id(backend, model).items() if key in missed]
            warn(
                f"keep={list(decoration.policy.keep)!r} does not reach where these parameters are used: "
                f"{first_of(names)}. A kept layer is float32 where "
                "it is called, and their layers were not called: a function or another method read them.\n"
                "Hint: def forward(self, x): ...  # of the kept layer, with all that reads them"
            )

    def _warn_of_what_is_left_out(self, trained: Sequence[Array], grads: Sequence[Array]) -> None:
        """Warn if a layer was replaced: the optimizer has the old one's parameters, and no loss does.

        Parameters that no optimizer has, and those that are not in the model, are common by themselves.
        """
        backend, model = self._backend, self._model
        inside, held = set(map(id, backend.parameters(model))), set(map(id, trained))
        stale = sum(g is None and id(p) not in inside for p, g in zip(trained, grads, strict=True))
        if not stale or held >= inside:
            return
        names = [name for key, name in names_by_id(backend, model).items() if key not in held]
        warn(
            f"{stale} of the optimizer's parameters are neither in the model nor in the loss, and these "
            f"of the model are not trained: {first_of(names)}. "
            "So it is where a layer was replaced after the optimizer was made.\n"
            f"Hint: {made_anew(self._optimizer)}; then amp.train_step(loss_fn, model, optimizer)"
        )
