"""Shows what mixed precision does to your model, in the same reports on every backend.

    from ampbridge import lens

    print(lens.census(loss_fn, model, x, y, policy="O1"))           each op: dtype, rule, layer
    print(lens.ranges(loss_fn, model, x, y))                        what float16 would lose; safe scales
    print(lens.locate(loss_fn, model, x, y, policy="O1"))           where inf or NaN begins, and its cure
    lens.bisect(loss_fn, model, [(x, y)], policy="O1").policy       a minimal set to keep in float32
    print(lens.worth_it(loss_fn, make, x, y))                       time and memory of O0, O1, O2
    print(lens.align((loss_fn, a, "O1"), (loss_fn, b, "O1"), x, y)) the first op that differs
    print(lens.parity((forward, model, "O0"), (forward, model, "O2"), x))   how near the outputs are
    step = lens.monitor(step, "ranges.csv", every=100)              ranges while training runs

The functions take the same ``loss_fn(model, *batch)`` as ``amp.train_step``. They run the model
eagerly, as often as a report needs, and afterwards restore weights, buffers, decoration and random
generators.
"""

from ampbridge_lens.align import Alignment, Difference, OtherDtype, OtherWeight, Place, align
from ampbridge_lens.bisect import Bisection, Entry, bisect
from ampbridge_lens.census import Census, CensusRow, census
from ampbridge_lens.exponents import Exponents
from ampbridge_lens.layer_parts import LayerPart
from ampbridge_lens.locate import Finding, Patch, locate
from ampbridge_lens.monitor import Monitor, MonitorRow, monitor
from ampbridge_lens.parity import LogitsParity, OutputError, Parity, Spread, parity
from ampbridge_lens.ranges import RangeRow, Ranges, ranges
from ampbridge_lens.recording import RecordedOp, Recording, record
from ampbridge_lens.worth import WorthIt, WorthRow, worth_it

__all__ = [
    "Alignment",
    "Bisection",
    "Census",
    "CensusRow",
    "Difference",
    "Entry",
    "Exponents",
    "Finding",
    "LayerPart",
    "LogitsParity",
    "Monitor",
    "MonitorRow",
    "OtherDtype",
    "OtherWeight",
    "OutputError",
    "Parity",
    "Patch",
    "Place",
    "RangeRow",
    "Ranges",
    "RecordedOp",
    "Recording",
    "Spread",
    "WorthIt",
    "WorthRow",
    "align",
    "bisect",
    "census",
    "locate",
    "monitor",
    "parity",
    "ranges",
    "record",
    "worth_it",
]
