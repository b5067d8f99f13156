"""The framework's own scaler, and its own precision objects, which ours are made into and of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ampbridge.errors import ArgumentTypeError, UnsupportedError

if TYPE_CHECKING:
    from ampbridge.adapters.backend import Optimizer
    from ampbridge.policies.policy import Policy


class NativeObjects(Protocol):
    """Conversions to the framework's own objects, and back. By default it has none."""

    name: str

    def native_scaler(self, state: Mapping[str, Any], optimizer: Optimizer | None) -> Any:
        """The framework's own scaler, with the state from ``GradScaler.state_dict``.

        Raises:
            ArgumentError: if it wraps an optimizer, and ``optimizer`` is None.
            UnsupportedError: if the framework has no scaler.
        """
        raise _no_scaler(self.name)

    def native_scaler_state(self, scaler: Any) -> Mapping[str, Any]:
        """The state of the framework's own scaler, in a form that ``GradScaler.load_state_dict`` reads.

        Raises:
            ArgumentTypeError: if ``scaler`` is not one of the framework's.
        """
        raise _no_scaler(self.name)

    def native_policy(self, policy: Policy) -> Any:
        """The framework's own objects for ``policy``, whose fields they can all express.

        Raises:
            UnsupportedError: if the framework has no such objects; this is the default.
        """
        msg = f"{self.name} has no precision objects of its own.\nHint: amp.autocast({policy!r})"
        raise UnsupportedError(msg)

    def policy_of_native(self, native: Any) -> Policy:
        """The policy that is equivalent to the framework's own object.

        Raises:
            ArgumentTypeError: if ``native`` is not such an object; this is the default.
            UnsupportedError: if no policy is equivalent.
        """
        msg = f"{type(native).__name__} of {self.name} is not a precision object.\n"
        raise ArgumentTypeError(msg + "Hint: Policy.from_native(torch.autocast('cuda'))")


def _no_scaler(name: str) -> UnsupportedError:
    msg = f"{name} has no loss scaler of its own.\nHint: amp.GradScaler() is one."
    return UnsupportedError(msg)
