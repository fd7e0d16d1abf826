"""Signals that tell a good draft token from a bad one before the target has seen it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

Direction = Literal["increasing", "decreasing", "none"]


@dataclass(frozen=True)
class Signal:
    """What a signal is.

    Attributes:
        name: the name that selects it.
        meaning: the signal in one sentence.
        looks_at_drawn_token: whether the value at a position depends on the token drawn there. Cutting on such a signal
            biases sampling unless it is corrected, see `schedule_drawn`.
        needs: what must have run: the draft alone, the acceptance head of a feature head, a companion, or a lookup in
            the text.
        direction: how acceptance changes with it; calibration holds it to that.
    """

    name: str
    meaning: str
    looks_at_drawn_token: bool
    needs: Literal["draft", "acceptance", "companion", "lookup"]
    direction: Direction


_SIGNALS = (
    Signal("S", "Overlap of draft and companion, Σ min(q, c) = 1 - TV(q, c).", False, "companion", "increasing"),
    Signal("A", "Acceptance of the drawn token by the companion, min(1, c/q).", True, "companion", "increasing"),
    Signal("q", "The draft's probability of the drawn token.", True, "draft", "increasing"),
    Signal("entropy", "Entropy of the draft's law, in nats.", False, "draft", "decreasing"),
    Signal("max_q", "The draft's largest probability.", False, "draft", "increasing"),
    Signal("margin", "The draft's largest probability less its second largest.", False, "draft", "increasing"),
    Signal(
        "expected",
        "What the head's own acceptance head expects, an estimate of 1 - TV(p, q).",
        False,
        "acceptance",
        "increasing",
    ),
    Signal("position", "Place in the block, from 1.", False, "draft", "none"),
    Signal("c", "The companion's probability of the drawn token.", True, "companion", "increasing"),
    Signal("match_length", "Tokens of text that matched where the draft was looked up.", False, "lookup", "increasing"),
    Signal("match_count", "Places in the text that matched where the draft was looked up.", False, "lookup", "none"),
)

SIGNALS: Mapping[str, Signal] = MappingProxyType({signal.name: signal for signal in _SIGNALS})
"""All signals by name. S and A: 2509.24328, section 3."""


def own_signals(names: Sequence[str]) -> tuple[str, ...]:
    """Those that need no companion."""
    return tuple(name for name in names if SIGNALS[name].needs != "companion")


def directions_of(names: Sequence[str], given: Mapping[str, Direction] | str | None) -> dict[str, Direction]:
    """The direction for every name: a signal's own ("auto"), as given by name, or none at all (None).

    Raises:
        ValueError: naming `monotone`.
    """
    if given == "auto":
        return {name: SIGNALS[name].direction if name in SIGNALS else "none" for name in names}
    if given is None:
        return dict.fromkeys(names, "none")
    allowed = get_args(Direction)
    if isinstance(given, str) or not set(given) <= set(names) or not set(given.values()) <= set(allowed):
        raise ValueError(f"monotone must be 'auto', None or map some of {list(names)} to {allowed}, got {given!r}")
    return {name: given.get(name, "none") for name in names}
