"""The matched baseline of a lossy rule as one argument of `generate`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..drafting.vocabulary import check_partner
from .matched import matched_baseline


class MatchedSampling:
    """Plain sampling with the law that a lossy rule intends, for `model.generate(custom_generate=…)`.

    The host prepares its processors as always, temperature, top-k … included, and `matched_baseline` is put behind
    them: p is the law that speculation with the same arguments verifies against.

        target.generate(**inputs, do_sample=True, temperature=0.7, custom_generate=MatchedSampling("min_p", p_base=0.1))

    Args:
        verification: name of a lossy rule.
        draft: the draft model, for all but the truncation rules.
        draft_temperature: as in speculation.
        options: the rule's parameters.

    Raises:
        ValueError, TypeError: as `matched_baseline`.
    """

    def __init__(
        self, verification: str, draft: Any = None, *, draft_temperature: float | None = None, **options: Any
    ) -> None:
        self.verification, self.draft, self.draft_temperature = verification, draft, draft_temperature
        self.options = options
        matched_baseline(verification, draft, draft_temperature=draft_temperature, **options)

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Any:
        """Generate; called by the host with everything prepared. Returns what plain sampling returns.

        Raises:
            ValueError: for a greedy call, whose matched baseline is plain greedy decoding; for drafts with another
                tokenizer.
        """
        if not generation_config.do_sample:
            raise ValueError("do_sample=False: the matched baseline of greedy decoding is greedy decoding itself")
        if self.draft is not None:
            check_partner(model, self.draft, "draft")
        processors = matched_baseline(
            self.verification,
            self.draft,
            processors=logits_processor,
            attention_mask=model_kwargs.get("attention_mask"),
            draft_temperature=self.draft_temperature,
            **self.options,
        )
        return type(model)._sample(
            model,
            input_ids,
            logits_processor=processors,
            stopping_criteria=stopping_criteria,
            generation_config=generation_config,
            **model_kwargs,
        )
