"""What the laws did at every position of generated texts, read with the processors that the call had."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..decoding.processors import ProcessorPlan
from ..drafting import Drafter
from ..drafting.vocabulary import vocabulary_size
from ..verification.lossy import LossyRule, TruncationRule
from .along import logits_along
from .draft_laws import DraftLaws, draft_laws
from .law_metrics import position_metrics
from .matched import TruncatedTarget
from .text import Text

# Numbers that one law of a few positions may have (4 MB in float32): ten of this size exist at a time.
LAW_ELEMENTS = 1 << 20


class PositionReading:
    """Reads texts again, in place of generating them: give it to `generate` as `custom_generate`, with the same inputs.

    The host prepares its processors as it did for the texts. Afterwards `log_likelihoods` has, for each text, the sum
    of the log-probabilities of its new tokens by the logits alone, without processors. With a rule, `positions` has
    what `position_metrics` says of each new token's position, and 1 in `drafted` where the law was the rule's; at the
    other positions it was p. The matched law is the truncated p, or for other rules `rule.law(p, q)`, where q is known.

    Args:
        texts: what was generated for the inputs.
        rule: the rule that generated them, or None for the likelihood alone.
        drafter: what drafted.
        draft_temperature: as in speculation; 0 where the draft took its most likely tokens.
    """

    def __init__(
        self,
        texts: list[Text],
        rule: LossyRule | None = None,
        drafter: Drafter | None = None,
        draft_temperature: float | None = None,
    ) -> None:
        self.texts, self.rule, self.drafter, self.draft_temperature = texts, rule, drafter, draft_temperature
        self.log_likelihoods: list[float] = []
        self.positions: list[dict[str, list[float]] | None] = []

    def __call__(self, model: Any, input_ids: Tensor, logits_processor: Any, *_: Any, **__: Any) -> Tensor:
        """Read all texts; called by the host with everything prepared. Returns the inputs."""
        plan = ProcessorPlan(list(logits_processor))
        laws = None
        if self.rule is not None and self.drafter is not None:
            laws = draft_laws(self.drafter, plan, self.draft_temperature, input_ids.device)
        for text in self.texts:
            self._read(model, text, plan, laws)
        return input_ids

    def _read(self, model: Any, text: Text, plan: ProcessorPlan, laws: DraftLaws | None) -> None:
        vocabulary = vocabulary_size(model)
        likelihood, found = 0.0, []
        if laws is not None:
            laws.start(text, vocabulary)
        for start, logits in _pieces(model, text, vocabulary):
            likelihood += _log_likelihood(logits, text.new[start : start + len(logits)])
            if laws is not None:
                found.append(self._measure(plan, laws, text, start, logits))
        self.log_likelihoods.append(likelihood)
        names = found[0] if found else ()
        columns = {name: torch.cat([values[name] for values in found]).tolist() for name in names}
        self.positions.append(columns or None)

    def _measure(
        self, plan: ProcessorPlan, laws: DraftLaws, text: Text, start: int, logits: Tensor
    ) -> dict[str, Tensor]:
        assert self.rule is not None
        stop = start + len(logits)
        p = plan(logits[None], text.block(start, stop) if plan.needs_history else None)[0].softmax(dim=-1)
        plan.commit([text.row], [len(logits) - 1])
        drafted = torch.tensor(text.work.drafted[start:stop], device=p.device)
        intended = self.rule.law(p, laws.law(start, stop))
        law = torch.where(drafted[:, None], intended, p)
        matched = matched_law(self.rule, p, intended) if _is_matched(self.rule, laws) else None
        return {"drafted": drafted.long(), **position_metrics(p, law, matched)}


def matched_law(rule: LossyRule, p: Tensor, intended: Tensor) -> Tensor:
    """(n, V) the law of the matched baseline: the truncated p, or the rule's own law where it intends no other."""
    if not isinstance(rule, TruncationRule):
        return intended
    kept: Tensor = TruncatedTarget(rule)(torch.empty(0), p.log())
    return kept.softmax(dim=-1)


def _is_matched(rule: LossyRule, laws: DraftLaws) -> bool:
    return laws.everywhere or isinstance(rule, TruncationRule)


def _pieces(model: Any, text: Text, vocabulary: int) -> Iterator[tuple[int, Tensor]]:
    """The target's logits (m, V) on the text's device, m such that laws of this size stay small."""
    step = max(1, LAW_ELEMENTS // vocabulary)
    for first, logits in logits_along(model, text.prompt, text.new, vocabulary):
        for start in range(0, len(logits), step):
            yield first + start, logits[start : start + step].to(text.new.device)


def _log_likelihood(logits: Tensor, tokens: Tensor) -> float:
    """Sum of the log-probabilities of tokens (m,) by logits (m, V)."""
    wide = logits.float()
    chosen = wide.gather(1, tokens[:, None]).squeeze(1)
    return float((chosen - wide.logsumexp(dim=-1)).double().sum())
