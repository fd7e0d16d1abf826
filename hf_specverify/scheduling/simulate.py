"""What each way of scheduling promises, by simulated steps: blocks drawn from a calibration, forwards by the costs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .calibration import CalibrationTable
from .call_costs import CallCosts, StepCosts
from .draft_stop import worth_drafting
from .goodput import schedule_batch
from .signals import own_signals
from .stopper import PERSISTENCE

STEPS = 48  # simulated steps of one figure


def simulated_rates(
    table: CalibrationTable, prices: CallCosts, rows: int, context: int, seed: int = 0
) -> dict[str, float]:
    """Tokens per second of the batch for "plain", "fixed" (the best length), "stop", "cut" and "cut with companion".

    Positions of a block are drawn independently of each other from the calibration, which real ones are not quite;
    ratios are more to be trusted than values. "stop" is left out where drafts are free, "cut with companion" without
    costs of one and signals of it in the table, and both and "cut" without signals of the drafter.

    Args:
        table: of acceptance by signals.
        prices: what steps cost, and the largest draft length.
        rows: in the batch.
        context: tokens of a row.
        seed: of the blocks.
    """
    step, generator = prices.step(rows, context), torch.Generator().manual_seed(seed)
    flat = table.number.flatten().double() + 1e-9
    cells = torch.multinomial(flat, STEPS * rows * prices.longest, replacement=True, generator=generator)
    shape = (STEPS, rows, prices.longest)
    known = table.probabilities.flatten()[cells].double().reshape(shape)
    own = own_signals(table.names)
    rates = {"plain": step.plain_rate, "fixed": _best_fixed(table.mean, prices, rows, context)}
    if own != table.names and step.companion is not None:
        rates["cut with companion"] = _cut(known, known, step, asks=True)
    if not own:
        return rates
    marginal = table.marginal(own).probabilities
    axes = [table.names.index(name) for name in table.names if name not in own]
    seen = marginal[_own_cells(table, cells, axes)].double().reshape(shape)
    if step.draft:
        rates["stop"] = _stop(seen, known, table.mean, step, max(rates["plain"], rates["fixed"]))
    rates["cut"] = _cut(seen, known, step, asks=False)
    return rates


def _own_cells(table: CalibrationTable, cells: Tensor, axes: list[int]) -> tuple[Tensor, ...]:
    """The places of flattened cells along the axes that the companion has no part in."""
    places = torch.unravel_index(cells, table.number.shape)
    return tuple(place for axis, place in enumerate(places) if axis not in axes)


def _best_fixed(acceptance: float, prices: CallCosts, rows: int, context: int) -> float:
    accepted = torch.full((prices.longest,), acceptance, dtype=torch.float64).cumprod(0).cumsum(0)
    return float((rows * (1 + accepted) / prices.fixed_seconds(rows, context)[1:]).amax())


def _rate(accepted: Tensor, lengths: Callable[[int], list[int]], seconds: Callable[[list[int]], float]) -> float:
    """Tokens per second over all steps: accepted (S, B, L) are survivals."""
    tokens, total = 0.0, 0.0
    for number, survival in enumerate(accepted):
        chosen = lengths(number)
        tokens += len(chosen) + sum(float(row[:length].sum()) for row, length in zip(survival, chosen, strict=True))
        total += seconds(chosen)
    return tokens / total


def _cut(predicted: Tensor, known: Tensor, step: StepCosts, asks: bool) -> float:
    """Drafts the full length, cuts by what is predicted, and is paid by what is known."""
    longest = predicted.shape[2]
    asked = predicted[0].numel() if asks else None
    spent = step.seconds(longest, 0, asked) - step.seconds(0, 0)
    survival = predicted.cumprod(dim=2)

    def lengths(number: int) -> list[int]:
        return [int(n) for n in schedule_batch(survival[number], spent + step.verify).lengths]

    return _rate(known.cumprod(dim=2), lengths, lambda chosen: spent + float(step.verify[sum(chosen)]))


def _stop(predicted: Tensor, known: Tensor, mean: float, step: StepCosts, rate: float) -> float:
    """Stops drafting row by row; the rate that it reaches is the one that it is held to."""
    survival = known.cumprod(dim=2)
    for _ in range(2):
        chosen = [_stopped(block, mean, step, rate) for block in predicted]

        def seconds(lengths: list[int]) -> float:
            return step.seconds(max(lengths), sum(lengths))

        rate = max(rate, _rate(survival, chosen.__getitem__, seconds))
    return _rate(survival, chosen.__getitem__, seconds)


def _stopped(predicted: Tensor, mean: float, step: StepCosts, rate: float) -> list[int]:
    """(B, L) predictions of one step -> draft lengths."""
    rows, longest = predicted.shape
    drafting, lengths = torch.ones(rows, dtype=torch.bool), torch.ones(rows, dtype=torch.long)
    survival = torch.ones(rows, dtype=torch.float64)
    for place in range(longest - 1):
        survival = torch.where(drafting, survival * predicted[:, place], survival)
        tokens = int(lengths.sum())
        extra = step.verify[tokens : tokens + rows + 1] - step.verify[tokens]
        extra = torch.nn.functional.pad(extra, (0, rows + 1 - len(extra)), value=float(extra[-1])) + step.draft
        upcoming = mean + PERSISTENCE * (predicted[:, place] - mean)
        drafting = worth_drafting(survival, upcoming, rate=rate, extra_seconds=extra, drafting=drafting)
        lengths += drafting
        if not bool(drafting.any()):
            break
    return lengths.tolist()
