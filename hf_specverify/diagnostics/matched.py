"""Plain sampling with the law that a lossy rule intends: what the rule is to be compared with, beside the target.

A truncation rule (`typical`, `min_p`) is compared with the same truncation of the target, p·1_set, normalised. Every
other rule is compared with its own law at every position, sampled exactly: for that the draft model runs along. The
rule itself has that law at drafted positions only, and p at bonus tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from ..decoding.processors import ProcessorPlan
from ..decoding.traits import input_device, model_traits
from ..drafting.vocabulary import fit_vocabulary
from ..verification import get_verifier
from ..verification.lossy import LossyRule, TruncationRule


def matched_baseline(
    verification: str,
    draft: Any = None,
    *,
    processors: Iterable[Any] = (),
    attention_mask: Tensor | None = None,
    draft_temperature: float | None = None,
    **options: Any,
) -> LogitsProcessorList:
    """Return logits processors with which plain sampling of the target has the law that a lossy rule intends.

    p is the target's law after the processors in front, temperature among them, as in speculation; so the rule's own
    processor stands last. `generate` puts its temperature, top-k … *behind* a list that it is given: give them as
    `processors` here and switch its own off (`temperature=1.0, top_k=0, top_p=1.0`), or use `MatchedSampling`.

    Args:
        verification: name of a lossy rule.
        draft: the draft model; not for truncation rules, which need none.
        processors: the user's, which come first in the returned list. The draft's scores get those of them that a
            draft model gets in speculation.
        attention_mask: (B, P) of the left-padded prompts, for the draft; None: there is no padding.
        draft_temperature: as in speculation; 0, a deterministic draft, takes its most likely token.
        options: the rule's parameters.

    Raises:
        ValueError, TypeError: for a verifier that is lossless, a draft that is missing or not needed, or options that
            are not allowed.
    """
    rule = lossy_rule(verification, **options)
    front = list(processors)
    if isinstance(rule, TruncationRule):
        if draft is not None:
            raise ValueError(f"draft: the matched baseline of {verification!r} is the target's alone; allowed is None")
        return LogitsProcessorList([*front, TruncatedTarget(rule)])
    if not hasattr(draft, "get_input_embeddings"):
        raise TypeError(f"draft={draft!r}: the matched baseline of {verification!r} needs a causal language model")
    if draft_temperature == 0 and "deterministic" not in rule.info.drafts:
        raise ValueError(f"draft_temperature=0: verification={verification!r} takes no deterministic drafts")
    return LogitsProcessorList([*front, MatchedMixture(rule, draft, front, attention_mask, draft_temperature)])


def lossy_rule(verification: str, **options: Any) -> LossyRule:
    """The lossy rule of a name.

    Raises:
        ValueError: if it is lossless, or no verifier has this name.
    """
    rule = get_verifier(verification, **options)
    if not isinstance(rule, LossyRule):
        raise ValueError(f"verification={verification!r} has no matched baseline: it does not change the target's law")
    return rule


class TruncatedTarget(LogitsProcessor):
    """Keeps the tokens that a truncation rule accepts outright: law p·1_set, normalised.

    Args:
        rule: the rule.
    """

    def __init__(self, rule: TruncationRule) -> None:
        self.rule = rule

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V), minus infinity outside the set of the law that they stand for."""
        p = scores.float().softmax(dim=-1)
        return scores.masked_fill(p < self.rule.threshold(p), -torch.inf)


class MatchedMixture(LogitsProcessor):
    """Turns the target's scores into the logarithm of a rule's law, `rule.law(p, q)`.

    q is that of the draft model after the same text, read anew for every token without a cache: slow and simple.

    Args:
        rule: the rule.
        draft: the draft model.
        processors: the target's, of which the draft gets those that it gets in speculation.
        attention_mask: (B, P) of the prompts, or None.
        draft_temperature: None: the target's; 0: q is one-hot on the most likely token.
    """

    def __init__(
        self,
        rule: LossyRule,
        draft: Any,
        processors: Iterable[Any] = (),
        attention_mask: Tensor | None = None,
        draft_temperature: float | None = None,
    ) -> None:
        self.rule, self.draft, self.attention_mask = rule, draft, attention_mask
        self.traits, self.device = model_traits(draft), input_device(draft)
        self.draft_temperature = draft_temperature
        plan = ProcessorPlan(list(processors))
        # Across devices a draft model gets only those that look at scores alone.
        self._far, self._near = (plan.draft_plan(draft_temperature, history).processors for history in (False, True))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) of the target to log-probabilities (B, V) in float32, for texts (B, T)."""
        p = scores.float().softmax(dim=-1)
        return self.rule.law(p, self.draft_law(input_ids, p.shape[-1]).to(p.device)).log()

    @torch.no_grad()
    def draft_law(self, input_ids: Tensor, vocabulary: int) -> Tensor:
        """(B, V) the draft's law of the next token after texts (B, T)."""
        ids = input_ids.to(self.device).clamp(max=self.traits.vocabulary_size - 1)
        outputs = self.draft(input_ids=ids, use_cache=False, **self._inputs(ids))
        scores = fit_vocabulary(outputs.logits[:, -1].float(), vocabulary)
        for processor in self._near if self.device == input_ids.device else self._far:
            scores = processor(input_ids, scores)
        if self.draft_temperature == 0:
            return torch.nn.functional.one_hot(scores.argmax(dim=-1), vocabulary).float()
        return scores.softmax(dim=-1)

    def _inputs(self, ids: Tensor) -> dict[str, Any]:
        """Mask and positions of left-padded texts, and the wish for the last logits only."""
        inputs: dict[str, Any] = {"logits_to_keep": 1} if self.traits.takes_logits_to_keep else {}
        if self.attention_mask is None:
            return inputs
        mask = self.attention_mask.to(ids.device)
        if len(mask) != len(ids) or mask.shape[1] > ids.shape[1]:
            raise ValueError(
                f"attention_mask must have {len(ids)} rows, one for every text, and at most {ids.shape[1]} columns, "
                f"got {tuple(mask.shape)}"
            )
        mask = torch.nn.functional.pad(mask, (0, ids.shape[1] - mask.shape[1]), value=1)
        inputs["attention_mask"] = mask
        if self.traits.takes_position_ids:
            inputs["position_ids"] = (mask.long().cumsum(dim=1) - 1).clamp(min=0)
        return inputs
