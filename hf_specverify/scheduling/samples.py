"""Single samples of a calibration, from which held-out figures are computed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .binning import distinct

Names = tuple[str, ...]
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
MOST_SIGNALS = 3  # of a set


@dataclass(frozen=True, eq=False)
class Samples:
    """What was seen at n positions, on the CPU.

    Attributes:
        signals: (n,) float32 for every name.
        outcome: (n,) float64 in [0, 1].
        groups: (n,) long, numbers of the sequences from 0 on.
    """

    signals: dict[str, Tensor]
    outcome: Tensor
    groups: Tensor

    @classmethod
    def checked(cls, signals: Mapping[str, Tensor], outcome: Tensor, groups: Tensor | None) -> Samples:
        """Check and convert what the user gave.

        Raises:
            ValueError: naming the argument.
        """
        outcome = torch.as_tensor(outcome).detach().cpu().double()
        if outcome.ndim != 1 or not len(outcome) or not bool(((outcome >= 0) & (outcome <= 1)).all()):
            raise ValueError(f"outcome must have the shape (n,), n ≥ 1, and entries in [0, 1], got {outcome}")
        if not signals:
            raise ValueError("signals must hold at least one signal, got none")
        values = {}
        for name, given in signals.items():
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise ValueError(f"signals must have names of letters, digits and _, up to 64, got {name!r}")
            value = torch.as_tensor(given).detach().cpu().float()
            if value.shape != outcome.shape or not bool(value.isfinite().all()):
                raise ValueError(f"signals[{name!r}] must be {len(outcome)} finite numbers, got {value}")
            values[name] = value
        if groups is None:
            return cls(values, outcome, torch.arange(len(outcome)))
        groups = torch.as_tensor(groups).detach().cpu()
        if groups.shape != outcome.shape or groups.is_floating_point() or groups.dtype == torch.bool:
            raise ValueError(f"groups must be {len(outcome)} integers, got {groups}")
        return cls(values, outcome, distinct(groups)[1])

    def __add__(self, other: Samples) -> Samples:
        """Both together, with the signals that both have; groups of the other follow these."""
        names = [name for name in self.signals if name in other.signals]
        return Samples(
            {name: torch.cat([self.signals[name], other.signals[name]]) for name in names},
            torch.cat([self.outcome, other.outcome]),
            torch.cat([self.groups, other.groups + int(self.groups.max()) + 1]),
        )

    def part(self, chosen: Tensor) -> Samples:
        """The samples at (n,) bool."""
        signals = {name: value[chosen] for name, value in self.signals.items()}
        return Samples(signals, self.outcome[chosen], self.groups[chosen])


def check_names(argument: str, names: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Check a signal set: one to three different names of those known.

    Raises:
        ValueError: naming the argument.
    """
    found = tuple(names)
    unknown = [name for name in found if name not in known]
    if isinstance(names, str) or unknown or not 1 <= len(found) <= MOST_SIGNALS or len(set(found)) < len(found):
        raise ValueError(f"{argument} must name one to {MOST_SIGNALS} different ones of {list(known)}, got {names!r}")
    return found
