"""What a forward costs: measured once for the models and the machine, looked up at every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from .cost_points import ROLES, Curve, Point, at_batch, between
from .fingerprint import Fingerprint


class CostModel:
    """Seconds of a forward by tokens, batch and context (2509.24328, section 4).

    A forward that packs its rows costs the sum of their tokens, one that pads them the longest row times their number;
    schedules count the sum. Along tokens no measurement counts for more than one over more tokens (what disturbs a
    measurement adds to it); between them it is interpolated, beyond them continued with the last slope, below them
    level. Between batch sizes and contexts the result is interpolated; beyond them it is that of the nearest batch, and
    along contexts it goes on to rise as that of one token per row.

    Args:
        points: the measurements, at least one.
        fingerprint: where and with which models they were made.

    Raises:
        ValueError: for two measurements of the same forward, or none.
    """

    def __init__(self, points: Iterable[Point], fingerprint: Fingerprint) -> None:
        self.points, self.fingerprint = tuple(sorted(points)), fingerprint
        keys = [(point.role, point.context, point.batch, point.tokens) for point in self.points]
        if not keys or len(set(keys)) < len(keys):
            raise ValueError("points must be measurements of different forwards, at least one")
        self._curves: dict[str, dict[int, dict[int, Curve]]] = {}
        grouped: dict[tuple[str, int, int], list[Point]] = {}
        for point in self.points:
            grouped.setdefault((point.role, point.context, point.batch), []).append(point)
        for (role, context, batch), measured in grouped.items():
            self._curves.setdefault(role, {}).setdefault(context, {})[batch] = Curve(measured)

    @classmethod
    def profile(
        cls,
        target: Any,
        draft: Any = None,
        companion: Any = None,
        batch_sizes: Sequence[int] = (1, 8),
        tokens: Sequence[int] = (1, 2, 4, 8),
        context: int | Sequence[int] = 256,
        *,
        budget_seconds: float = 90.0,
        repeats: int = 7,
        on_cell: Callable[[int, int], None] = lambda done, total: None,
    ) -> CostModel:
        """Measure the models as the loop runs them.

        Args:
            target: a Transformers causal language model.
            draft: another one, a drafter such as a `FeatureHead`, whose passes are priced, or None.
            companion: another one, a `FeatureHead`, or None.
            batch_sizes: rows.
            tokens: tokens per row of the target's and the companion's forwards, the root included; the draft is
                measured with one and two.
            context: cached tokens per row, or several numbers of them.
            budget_seconds: with less time than `repeats` need there are fewer; every forward is measured once, whatever
                that takes.
            repeats: of each forward, taken in turn; the median counts.
            on_cell: called with the number of measured combinations of batch size and context, and that of all.

        Raises:
            ValueError: naming an argument that is not as described.
        """
        from ..drafting import Drafter
        from .head_companion import companion_weights
        from .profiling import profile

        if isinstance(draft, Drafter):
            draft = draft.drafting_model(target)
        models = {"target": target, "draft": draft, "companion": companion_weights(companion)}
        contexts = [context] if isinstance(context, int) else list(context)
        given = {role: model for role, model in models.items() if model is not None}
        points = profile(given, batch_sizes, tokens, contexts, budget_seconds, repeats, on_cell)
        return cls(points, Fingerprint.of(given))

    @property
    def roles(self) -> tuple[str, ...]:
        """The models that were measured."""
        return tuple(role for role in ROLES if role in self._curves)

    def latency(self, tokens: float, batch: int, context: int = 0, role: str = "target") -> float:
        """Seconds of a forward over `tokens` tokens in all, roots and filler included, with `context` cached per row.

        Raises:
            ValueError: for a role that was not measured, or numbers that are not positive.
        """
        if role not in self._curves:
            raise ValueError(f"role must be one of {list(self._curves)}, which were measured, got {role!r}")
        if not (tokens > 0 and batch >= 1 and context >= 0):
            raise ValueError(f"tokens, batch and context must be positive, got {tokens}, {batch}, {context}")
        contexts = self._curves[role]
        low, high, share = between(sorted(contexts), context)
        below, above = (at_batch(contexts[bucket], tokens, batch) for bucket in (low, high))
        if share <= 1:
            return below + share * (above - below)
        # The slope of one token per row, for all: of each its own, noise could make seconds fall along tokens.
        growth = at_batch(contexts[high], batch, batch) - at_batch(contexts[low], batch, batch)
        return above + (share - 1) * max(growth, 0.0)

    def verify_table(self, batch: int, most: int, context: int = 0, role: str = "target") -> Tensor:
        """(most + 1,) float64 seconds by the number of draft tokens over all rows, each row's root added to them.

        This is the latency that schedules take.
        """
        seconds = [self.latency(batch + extra, batch, context, role) for extra in range(most + 1)]
        return torch.tensor(seconds, dtype=torch.float64)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the measurements and their fingerprint as JSON."""
        from .cost_files import save_costs

        save_costs(self, path)

    @classmethod
    def load(cls, path: str | PathLike[str], models: Mapping[str, Any] | None = None) -> CostModel:
        """Read measurements; warns (UserWarning) for each field in which this machine differs from that of the file.

        Args:
            path: a file that `save` wrote.
            models: by role, the models that the costs are to be used for.

        Raises:
            ValueError: naming a damaged field, or a role whose model is another one.
        """
        from .cost_files import load_costs

        return load_costs(path, models or {})
