"""Cut what a batch verifies to what pays, and correct for having looked."""

from __future__ import annotations

import torch
from torch import Tensor

from ..drafting.batch import DraftBatch
from .calibration import CalibrationTable
from .cutoff import admission_cutoff
from .drawn import admitted, schedule_drawn
from .goodput import schedule_batch
from .signal_values import vocabulary_signals
from .signals import SIGNALS


def looks(table: CalibrationTable) -> bool:
    """Whether a signal of the table looks at the drawn token."""
    return any(SIGNALS[name].looks_at_drawn_token for name in table.names)


def cut(drafts: DraftBatch, predicted: Tensor, latency: Tensor, weights: Tensor | None = None) -> DraftBatch:
    """Keep the positions that raise the batch's goodput, best survival first; exact where no token was looked at.

    Args:
        drafts: the proposals.
        predicted: (B, L) acceptance.
        latency: seconds of the step by the draft tokens verified, see `schedule_batch`.
        weights: (B,) what the rows' tokens are worth.
    """
    survival = predicted.double().cumprod(dim=1)
    return drafts.shortened(schedule_batch(survival, latency, _drafted(drafts, predicted), weights).lengths.tolist())


def cut_drawn(
    drafts: DraftBatch,
    predicted: Tensor,
    latency: Tensor,
    table: CalibrationTable,
    signals: dict[str, Tensor],
    c: Tensor | None,
    weights: Tensor | None = None,
) -> DraftBatch:
    """The same for predictions that have looked at tokens drawn from q: corrected by null tokens (`schedule_drawn`).

    Args:
        drafts: the proposals.
        predicted: (B, L) acceptance.
        latency: as for `cut`.
        table: that predicted.
        signals: (B, L) each, those of the table.
        c: (B, L, V) the companion's laws, if the table has one of its signals.
        weights: as for `cut`.
    """
    schedule = schedule_drawn(predicted, latency, _drafted(drafts, predicted), weights=weights)

    def admit(rows: Tensor, places: Tensor) -> Tensor:
        return _admitted(drafts, table, signals, c, schedule.required, rows, places)

    return drafts.corrected(schedule.lengths.tolist(), schedule.cut.tolist(), admit)


def _drafted(drafts: DraftBatch, predicted: Tensor) -> Tensor:
    return torch.tensor(drafts.lengths, device=predicted.device)


def _admitted(
    drafts: DraftBatch,
    table: CalibrationTable,
    drawn: dict[str, Tensor],
    c: Tensor | None,
    required: Tensor,
    rows: Tensor,
    places: Tensor,
) -> Tensor:
    """(m, V) bool, which tokens would have been admitted at some places, had they been drawn."""
    assert drafts.q is not None
    by_token = [name for name in table.names if SIGNALS[name].looks_at_drawn_token]
    fixed = {name: drawn[name][rows, places] for name in table.names if name not in by_token}
    values = vocabulary_signals(by_token, drafts.q[rows, places], None if c is None else c[rows, places])
    if len(by_token) == 1 and table.directions[by_token[0]] == "increasing":
        cutoff = admission_cutoff(table, by_token[0], required[rows, places], fixed)
        return values[by_token[0]] >= cutoff[:, None]
    known = {name: value[:, None] for name, value in fixed.items()}
    return admitted(table.predict({**values, **known}), required[rows, places])
