"""The autocast region."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ampbridge.adapters import registry
from ampbridge.adapters.backend import Backend
from ampbridge.adapters.tracing import called_as_it_is, constant_result
from ampbridge.errors import UnsupportedError
from ampbridge.errors.foreign_names import told_of
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import single


@called_as_it_is
@told_of("autocast")
@contextmanager
def autocast(policy: str | Policy = "O1", backend: str | Backend | None = None) -> Iterator[None]:
    """Run the enclosed ops, or those of the decorated function, under ``policy``.

    Regions nest: only the inner policy applies, and an inner O0 region is all float32. Leaving a
    region by an exception restores the state before it. A region does not affect other threads or
    other asyncio tasks (on torch, tasks of one thread share their region, as with
    ``torch.autocast``). Compute gradients outside of the region.

        with amp.autocast("O1:bfloat16"):
            loss = loss_fn(model, x, y)

    Args:
        policy: a Policy or its short form.
        backend: a name or a Backend; by default, the one registered framework that is imported.

    A region does not handle kept layers, nor the inputs and outputs of a model; use ``decorate``.

    Raises:
        BackendNotFoundError: without ``backend``, if no or several frameworks are imported.
        UnsupportedError: for a policy with kept layers.
    """
    parsed = single(policy)
    _refuse_kept_layers(parsed)
    chosen = backend if backend is not None and not isinstance(backend, str) else _loaded(backend)
    with registry.backend(chosen).autocast(parsed):
        yield


@constant_result
def _loaded(name: str | None) -> str:
    """The name of the backend of that name, or of the active one, which is loaded now."""
    return (registry.active_backend() if name is None else registry.backend(name)).name


def _refuse_kept_layers(policy: Policy) -> None:
    """A region has no model, so it cannot tell which layers to keep in float32."""
    if policy.keep:
        msg = (
            f"{policy!r}: a region has no model, so it cannot keep layers in float32.\n"
            "Hint: amp.decorate(model, policy=policy), then call the model; or "
            "policy.replace(keep=()) for the region."
        )
        raise UnsupportedError(msg)
