"""The region in which a policy holds."""

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
    """Run the enclosed ops, or the decorated function's, as ``policy`` says.

    Regions nest: the inner policy alone counts, and an inner O0 region is full float32. They are
    left intact by exceptions and are not seen by other threads, nor by other asyncio tasks (on torch,
    tasks of one thread share their region, as they do with ``torch.autocast``). Take gradients outside.

        with amp.autocast("O1:bfloat16"):
            loss = loss_fn(model, x, y)

    Args:
        policy: a Policy or its short form.
        backend: a name or a Backend; without it, the one registered framework that is imported.

    Kept layers, inputs and outputs are of a model: ``decorate`` sees to them.

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
    """A region knows no model, so it cannot tell which layers are to be kept."""
    if policy.keep:
        msg = (
            f"{policy!r}: a region knows no model whose layers it could keep in float32.\n"
            "Hint: amp.decorate(model, policy=policy), then call the model; or "
            "policy.replace(keep=()) for the region."
        )
        raise UnsupportedError(msg)
