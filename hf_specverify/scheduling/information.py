"""What signals tell about acceptance, in bits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .held_out import held_out
from .samples import MOST_SIGNALS, Names, Samples
from .signals import SIGNALS, Direction

_LEAST_BITS = 0.001  # what one more signal of a table must tell


@dataclass(frozen=True)
class Information:
    """What one signal set tells.

    Attributes:
        bits: H(X) - H(X | signals), held out and bias-corrected; X is whether a token is accepted.
        share: of H(X); 0 where there is nothing to tell.
    """

    bits: float
    share: float


class InformationTable(dict[Names, Information]):
    """`Information` for every signal set, the key a tuple of names in the order given to fit.

    An entry is also found by the names in another order, or by the name of a single signal.

    Attributes:
        entropy: H(X) in bits, of whether a reached token is accepted.
        companion_bits: how much more the best set tells that may use a companion's signals than the best one of the
            draft's own (and the lookup's); None where there are no signals of both kinds.
    """

    def __init__(self, entries: Mapping[Names, Information], entropy: float) -> None:
        super().__init__(entries)
        self.entropy = entropy
        self.companion_bits = _companion_bits(entries)

    def __missing__(self, key: str | Names) -> Information:
        wanted = {key} if isinstance(key, str) else set(key)
        for names in self:
            if set(names) == wanted:
                return self[names]
        raise KeyError(key)


def information_table(
    samples: Samples, directions: Mapping[str, Direction], sets: Sequence[Names] = ()
) -> InformationTable:
    """Compare signal sets by their held-out log loss, see `held_out`."""
    names = tuple(samples.signals)
    if not sets:
        sizes = range(1, min(MOST_SIGNALS, len(names)) + 1)
        sets = [chosen for size in sizes for chosen in itertools.combinations(names, size)]
    mean = float(samples.outcome.mean())
    entropy = -sum(x * math.log2(x) for x in (mean, 1 - mean) if x > 0)
    base = held_out(samples, (), directions).loss
    entries = {}
    for chosen in sets:
        bits = base - held_out(samples, chosen, directions).loss
        entries[tuple(chosen)] = Information(bits, bits / entropy if entropy > 0 else 0.0)
    return InformationTable(entries, entropy)


def most_telling(samples: Samples, directions: Mapping[str, Direction]) -> Names:
    """Choose signals one after the other, each that which lowers the held-out log loss most.

    At least one and at most three; none is added that lowers it by less than `_LEAST_BITS`: a table of more signals
    has fewer samples in each of its cells.
    """
    chosen: Names = ()
    least = math.inf
    for _ in range(min(MOST_SIGNALS, len(samples.signals))):
        left = [name for name in samples.signals if name not in chosen]
        losses = {name: held_out(samples, (*chosen, name), directions).loss for name in left}
        best = min(left, key=lambda name: losses[name])
        if least - losses[best] < _LEAST_BITS:
            break
        chosen, least = (*chosen, best), losses[best]
    return tuple(name for name in samples.signals if name in chosen)


def _companion_bits(entries: Mapping[Names, Information]) -> float | None:
    def uses_companion(names: Names) -> bool:
        return any(name in SIGNALS and SIGNALS[name].needs == "companion" for name in names)

    own = [entry.bits for names, entry in entries.items() if not uses_companion(names)]
    if not own or len(own) == len(entries):
        return None
    return max(entry.bits for entry in entries.values()) - max(own)
