"""What there is to compute with, and what becomes of a policy there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from ampbridge.adapters.roles import cannot

if TYPE_CHECKING:
    from ampbridge.adapters.backend import Model
    from ampbridge.policies.op_table import Category
    from ampbridge.policies.policy import Policy


class Device(NamedTuple):
    """A device, as its framework names it: ``"cpu"``, ``"cuda:0"``, ``"gpu:0"``.

    Attributes:
        kind: "cpu", "gpu", "tpu", or the framework's own word for another kind.
        model: the product name.
        compute_capability: for NVIDIA's GPUs.
        bfloat16_instructions: the instructions with which a CPU multiplies bfloat16, if the framework
            uses them.
    """

    name: str
    kind: str
    model: str
    compute_capability: tuple[int, int] | None = None
    bfloat16_instructions: tuple[str, ...] = ()


class Probe(NamedTuple):
    """The result of a trial computation on a device.

    Attributes:
        failures: the framework's error for each dtype in which a small matrix product, or its
            gradient, failed.
        settings: settings of the device that change precision or speed, in words: "float32 products",
            "compiler".
    """

    failures: Mapping[str, str]
    settings: Mapping[str, str]


class Product(NamedTuple):
    """A matrix product of a layer with its parameters.

    ``inputs`` and ``outputs`` are numbers of features or channels; a convolution sums over ``window``
    places.
    """

    layer: str
    kind: str
    inputs: int
    outputs: int
    window: int = 1


class OpTreatment(NamedTuple):
    """How a canonical op is treated under a policy.

    Attributes:
        by: "native": the framework casts its inputs, or leaves them alone; "ampbridge": ampbridge casts
            its inputs; "simulated": a float32 kernel runs, and ampbridge rounds its values; "absent":
            the framework has no such op, so the rule has no effect.
        category: the rule that applies. It differs from the policy's rule if several ops share a
            spelling. None for an absent op, and if the framework does not tell.
        dtype: the dtype in which it computes; "inputs'" if it follows its inputs, "its parts'" if it
            consists of ops with rules of their own.
        why: an explanation, if the other fields need one.
    """

    by: Literal["native", "ampbridge", "simulated", "absent"]
    category: Category | None
    dtype: str
    why: str = ""


class FeatureTreatment(NamedTuple):
    """How a feature is treated; "refused" raises an error, "absent": the framework has no such feature."""

    by: Literal["native", "ampbridge", "simulated", "refused", "absent"]
    why: str


class Explanation(NamedTuple):
    """How a backend treats a policy on one device: every canonical op, and other features."""

    device: str
    ops: Mapping[str, OpTreatment]
    features: Mapping[str, FeatureTreatment]


class Probing(Protocol):
    """Devices, and the treatment of each op. By default nothing is known of either."""

    name: str

    def devices(self) -> list[Device]:
        """The devices of this framework on this machine; the first is the default for training."""
        raise cannot(self.name, "tell the devices of this machine", _NO_AUTO)

    def probe(self, device: Device) -> Probe:
        """Compute a small product in float32, float16 and bfloat16 on ``device``, to see what works."""
        raise cannot(self.name, "tell the devices of this machine", _NO_AUTO)

    def products(self, model: Model) -> list[Product]:
        """The matrix products of the layers whose product is known, with the names of ``layers``."""
        return []

    def explain(self, policy: Policy) -> Explanation:
        """The effect of a region of ``policy`` on the first of ``devices``, from the rules it would use.

        Raises:
            UnsupportedError: for a policy that a region refuses.
        """
        raise cannot(self.name, "explain a policy", "policy.op_list, which has its rules")


_NO_AUTO = "amp.Policy('O1', 'bfloat16'), in the place of Policy.auto()"
