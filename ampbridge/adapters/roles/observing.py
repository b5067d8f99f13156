"""Each op that runs, and its values: what the lens shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from ampbridge.adapters.roles import cannot
from ampbridge.adapters.roles.saving import Saving

if TYPE_CHECKING:
    import numpy.typing as npt

    from ampbridge.adapters.backend import Array, Model
    from ampbridge.adapters.observation import Observer


class Observing(Saving, Protocol):
    """Ops, as they run. By default none can be seen."""

    def observe(
        self, model: Model, observer: Observer, *, gradients: bool
    ) -> AbstractContextManager[None]:
        """Report each op inside to ``observer``, and its gradients when the backward pass computes them.

        The caller wraps ``loss_fn`` in this context manager and passes it to ``gradients``, so it is
        open in the forward pass, within its region. Inside, everything runs eagerly, also functions
        that the user has compiled. The results are the same to the bit. Other threads are not
        observed. After it closes, also by an exception, only the hooks of a later backward pass remain.

        Args:
            model: reports contain the names of its layers.
            gradients: whether gradients are reported; if not, no hooks for them are installed.

        Raises:
            UnsupportedError: if ops cannot be observed; this is the default.
        """
        raise cannot(
            self.name, "observe ops", "amp.lens.census(...) with a model of another framework"
        )

    def to_numpy(self, x: Array) -> npt.NDArray[Any]:
        """The values on the host, as float32; float64 stays float64. Waits for the device.

        Raises:
            UnsupportedError: for a backend that cannot observe ops either; this is the default.
        """
        raise cannot(
            self.name, "show values", "amp.lens.ranges(...) with a model of another framework"
        )

    def restored(self, model: Model) -> AbstractContextManager[None]:
        """Restore an undecorated model after the passes inside, also after an exception.

        It restores, bit by bit, whatever has changed: parameters; buffers of every dtype, saved or
        not; all other attributes of layers, each the same object; and random generators, the
        framework's own and those of layers. The default restores only the weights. Waits for the device.
        """
        return _restored(self, model)

    def peak_memory(self, action: Callable[[], None]) -> int | None:
        """Run ``action``, and measure the most bytes of arrays that it allocated at any time.

        None if the framework does not tell; this is the default.
        """
        action()
        return None


@contextmanager
def _restored(backend: Saving, model: Model) -> Iterator[None]:
    values = backend.read_weights(model)
    try:
        yield
    finally:
        backend.write_weights(model, values)
