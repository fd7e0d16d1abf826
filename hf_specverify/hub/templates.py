"""The templates in `model_cards/`: cards with placeholders, from the code that writes real ones.

`python -m hf_specverify.hub.templates model_cards` writes them.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch

from ..companion_card import write_card as write_companion_card
from ..scheduling.calibration import CalibrationTable
from .card import PLACE, write_card
from .figures import Figures
from .identity import ModelIdentity
from .origin import Origin


def templates() -> dict[str, str]:
    """The text of every template by its file's name."""
    companion = write_companion_card(
        "USER/COMPANION", "nf4", "USER/DRAFT", "COMMIT", (0, 0), (0, 0), distance=None, own_text=False
    )
    return {
        "calibration.template.md": write_card(_placeholder(), PLACE, plots=True, costs=True),
        "companion.template.md": companion,
    }


def _placeholder() -> CalibrationTable:
    table = CalibrationTable.fit({"S": torch.zeros(1), "A": torch.zeros(1)}, torch.zeros(1))
    origin = Origin(
        **{role: _model(f"USER/{role.upper()}") for role in ("target", "draft", "companion")},
        sampling={"do_sample": True, "temperature": 1.0},
        drafting={"drafter": "DraftModel", "num_draft_tokens": 0},
        data={"name": "USER/DATA", "revision": "COMMIT", "num_prompts": 0},
        figures=Figures(0.0, {"S,A": 0.0}, 0.0, 0.0, 0.0, 0.0, {1: (0, 0.0, 0.0, 0.0)}),
        versions={"hf_specverify": "VERSION", "torch": "VERSION", "transformers": "VERSION"},
        command="specverify calibrate …",
        seed=0,
    )
    return replace(table, origin=origin)


def _model(name: str) -> ModelIdentity:
    return ModelIdentity(name, "COMMIT", "CLASS", None, "bfloat16", "DEVICE", 0, "SHA256", "SHA256", "SHA256")


if __name__ == "__main__":
    for name, text in templates().items():
        (Path(sys.argv[1]) / name).write_text(text, encoding="utf-8")
