"""What float32 means: a setting of the whole process that ``with`` statements change.

Kernels ask for it when they are launched, those of a backward pass by threads of the framework. So it
cannot belong to a thread. Of several blocks that are open, the one that was entered last decides; the
last one to be left puts back what the first one found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import ref

from ampbridge.adapters.interrupts import put_back_after, uninterrupted
from ampbridge.adapters.roles import cannot
from ampbridge.errors import UnsupportedError

if TYPE_CHECKING:
    from ampbridge.policies.policy import Policy

T = TypeVar("T")


class Float32Setting(Generic[T]):
    """A framework's switch for ``Policy.float32``.

    Args:
        name: the framework's.
        read: the state of the switch, for ``put_back``.
        write: sets "ieee" or "tf32".
        traced_by: what traces the code that runs now, or "". Kernels of traced code run later.
        rounding: makes a block that rounds the inputs of float32 products to TF32; None for none.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], T],
        write: Callable[[str], None],
        put_back: Callable[[T], None],
        traced_by: Callable[[], str],
        rounding: Callable[[], AbstractContextManager[Any]] | None = None,
    ) -> None:
        self._name, self._traced_by = name, traced_by
        self._rounding = rounding or self._refuse_rounding
        self._read, self._write, self._put_back = read, write, put_back
        self._before: list[T] = []
        self._open: dict[int, tuple[str, ref[_Block]]] = {}
        self._lock = RLock()

    def during(self, policy: Policy) -> AbstractContextManager[None]:
        """See ``Backend.float32``."""
        return self.around(nullcontext(), policy)

    def around(
        self, inside: AbstractContextManager[Any], policy: Policy
    ) -> AbstractContextManager[None]:
        """``inside``, in which float32 means what ``policy`` says.

        Raises:
            UnsupportedError: for rounding, without ``rounding``; and in traced code, unless a block around
                the trace says the same.
        """
        rounding = self._rounding() if rounds_to_tf32(policy) else nullcontext()
        traced_by = self._traced_by()
        if traced_by:
            self.check_traced(policy.float32, traced_by)
            return inside
        return self._around(policy.float32, rounding, inside)

    def _refuse_rounding(self) -> AbstractContextManager[Any]:
        raise cannot_round(self._name)

    def check_traced(self, precision: str, traced_by: str) -> None:
        """Refuse a region in code that is being traced, unless a block around the trace says the same."""
        if [entered[0] for entered in self._open.values()][-1:] != [precision]:
            raise UnsupportedError(
                f"{traced_by} traces a region with float32={precision!r}, which belongs to the process and "
                "is asked for when kernels run.\n"
                f"Hint: with amp.autocast(amp.Policy('O0', float32={precision!r})): around the call of "
                "what is compiled; amp.train_step does so by itself."
            )

    @contextmanager
    def _around(
        self,
        precision: str,
        rounding: AbstractContextManager[Any],
        inside: AbstractContextManager[Any],
    ) -> Iterator[None]:
        block = _Block()
        leave = partial(self._leave, id(block))
        with put_back_after(leave):
            with uninterrupted(), self._lock:
                if not self._open:
                    self._before = [self._read()]
                self._open = {**self._open, id(block): (precision, ref(block, leave))}
                self._write(precision)
            with rounding, inside:
                yield

    def _leave(self, key: int, _: object = None) -> None:
        """Leave a block; twice is once. One that an interrupt cut off is left as its frame ends."""
        with self._lock:
            if key not in self._open:
                return
            rest = {each: entered for each, entered in self._open.items() if each != key}
            if rest:
                self._write([*rest.values()][-1][0])
            else:
                self._put_back(self._before[0])
            self._open = rest  # last: what an interrupt cuts off is done again


class _Block:
    """Alive as long as the frame of its ``with`` statement."""


def check_loop_of_others(policy: Policy) -> None:
    """Refuse ``float32`` where another library differentiates and steps, outside of our regions.

    Raises:
        UnsupportedError: for another value than "default".
    """
    if policy.float32 != "default":
        raise UnsupportedError(
            f"{policy!r}: the loop's library runs backward passes and updates outside of regions, and "
            f"float32={policy.float32!r} would hold in the forward passes alone.\n"
            f"Hint: policy.replace(float32='default'), and with amp.autocast(amp.Policy('O0', "
            f"float32={policy.float32!r})): around the whole training."
        )


def rounds_to_tf32(policy: Policy) -> bool:
    """Whether the inputs of float32 products are to be rounded to TF32 on a device that does not do so."""
    return policy.float32 == "tf32" and policy.execution == "simulated"


def no_tf32(name: str) -> UnsupportedError:
    """The error for ``float32="tf32"`` on the framework of that name."""
    return cannot(name, "compute float32 products in TF32", "float32='ieee'")


def cannot_round(name: str) -> UnsupportedError:
    """The error for ``rounds_to_tf32`` on the framework of that name."""
    return cannot(name, "simulate TF32", "execution='auto'; on a CPU torch simulates it")
