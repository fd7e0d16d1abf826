"""What speculation has brought lately, beside plain decoding."""

from __future__ import annotations

import torch

from .call_costs import CallCosts, StepCosts

KEEP = 1 - 1 / 16  # a step's weight beside the next one's
ASSUMED_STEPS = 4.0  # steps that what was assumed at first counts for


class SpeedUp:
    """Tokens of the last steps over the tokens that plain decoding would have made in the same seconds.

    Tokens are expected ones, by the acceptance probabilities of what was verified, and seconds are those of the cost
    model: both have less chance in them than what happened, and with a seed a call takes the same decisions again.
    Times the rate of plain decoding this is the long-run rate of the call, the price at which a second of work that
    brings fewer tokens is not worth it.

    Args:
        assumed: before the first step; None asks for it later, see `assume`.
    """

    def __init__(self, assumed: float | None = None) -> None:
        self.assumed = assumed
        self._tokens = self._plain = 0.0

    @property
    def is_known(self) -> bool:
        """Whether there is anything to go by."""
        return self.assumed is not None

    def assume(self, value: float) -> None:
        """Begin, or begin again, with an assumption."""
        self.assumed, self._tokens, self._plain = value, 0.0, 0.0

    def add(self, tokens: float, seconds: float, step: StepCosts) -> None:
        """Take a step in."""
        plain = seconds * step.plain_rate
        if not self._plain:
            self._tokens, self._plain = ASSUMED_STEPS * plain * self.value, ASSUMED_STEPS * plain
        self._tokens = KEEP * self._tokens + tokens
        self._plain = KEEP * self._plain + plain

    @property
    def value(self) -> float:
        """The ratio; above 1 speculation pays."""
        if self._plain:
            return self._tokens / self._plain
        return 1.0 if self.assumed is None else self.assumed

    def rate(self, step: StepCosts) -> float:
        """Tokens per second of the whole batch."""
        return self.value * step.plain_rate


def promised(prices: CallCosts, rows: int, context: int, acceptance: float) -> float:
    """The best speed-up of a fixed length, at least 1, if every token is accepted with the same probability."""
    accepted = torch.full((prices.longest,), acceptance, dtype=torch.float64).cumprod(0).cumsum(0)
    rates = (1 + torch.nn.functional.pad(accepted, (1, 0))) / prices.fixed_seconds(rows, context)
    return float(rates.amax() / rates[0])
