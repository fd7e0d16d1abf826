"""The files of a calibration's folder."""

from __future__ import annotations

TENSORS, RECORD = "calibration.safetensors", "calibration.json"
COSTS = "cost_table.json"
CARD = "README.md"
RELIABILITY = "reliability.png"
RECIPE, REQUIREMENTS = "custom_generate/generate.py", "custom_generate/requirements.txt"
UPLOADED = (TENSORS, RECORD, COSTS, CARD, RELIABILITY, RECIPE, REQUIREMENTS)
"""Of a folder, what goes to the Hub."""
