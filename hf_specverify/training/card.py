"""The model card that goes with a head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..drafting.heads import HeadConfig
from ..drafting.heads.acceptance import ACCEPTANCE
from ..hub.records import is_hub_id
from .settings import HeadTraining

if TYPE_CHECKING:
    from .training import HeadReport


def write_card(
    config: HeadConfig,
    layers: Sequence[int],
    settings: HeadTraining,
    report: HeadReport,
    licence: str | None = None,
    about: str = "",
) -> str:
    """The text of README.md.

    Args:
        config: of the head.
        layers: of the target that it reads.
        settings: of its training.
        report: what came of it.
        licence: as the Hub names it.
        about: a paragraph of its maker.
    """
    named = config.target is not None and is_hub_id(config.target) and "/" in config.target
    base = [f"base_model: {config.target}"] if named else []
    licences = [] if licence is None else [f"license: {licence}"]
    said = [about, ""] if about else []
    temperatures = ", ".join("greedy" if value == 0 else f"temperature {value}" for value in settings.temperatures)
    rows = [
        ("target", config.target if named else ", ".join(config.target_architectures)),
        ("reads hidden states", ", ".join(map(str, layers))),
        ("parameters of its own", f"{report.parameters / 1e6:.1f} M; embeddings and scoring rows are the target's"),
        ("draft vocabulary", f"{config.draft_vocab_size} of {config.vocabulary} tokens"),
        ("trained on", f"{report.texts} texts, {report.tokens} tokens, {settings.epochs} times"),
        ("answers in them", f"written by the target itself ({temperatures}), as far as prompts were given"),
        ("steps in a row", f"{settings.unroll}"),
    ]
    foreseen = report.acceptance
    told = [] if foreseen is None else [
        f"Beside it `{ACCEPTANCE}` is a small network on the head's output that estimates how likely its next token is",
        "accepted, 1 - TV(p, q) at temperature 1. It learned from half of these texts; in the other half its mean",
        f"error is {foreseen.error:.3f}, and it tells {foreseen.bits:.3f} of the {foreseen.entropy:.3f} bits of",
        "whether a token is accepted.",
        "",
    ]  # fmt: skip
    survival = [f"| {place} | {share:.3f} |" for place, share in enumerate(report.survival, 1)]
    lines = [
        "---", "library_name: hf_specverify", "pipeline_tag: text-generation", *base, *licences,
        "tags:", "- speculative-decoding", "- eagle3", "- speculators", "---", "",
        "# Feature head", "",
        "A drafter for speculative decoding, EAGLE-3 style (2503.01840): one decoder layer that reads hidden states of",
        "its target. The files are in the `speculators` format (release 0.9).", "",
        "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows), "", *said,
        f"Of places in {report.held_out} texts that it was not trained on, the share at which greedy drafts of so many",
        "tokens are the target's own choice throughout:", "",
        "| tokens | share |", "|---|---|", *survival, "", *told,
        "```python",
        "import hf_specverify as sv", "",
        'head = sv.FeatureHead.from_pretrained("FOLDER", target)',
        "sv.enable(target)",
        "target.generate(**inputs, assistant_model=head)",
        "```", "",
    ]  # fmt: skip
    return "\n".join(lines)
