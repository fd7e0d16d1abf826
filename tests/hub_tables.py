"""Small tables and models for the tests of artefacts."""

from __future__ import annotations

from dataclasses import replace

import torch

from hf_specverify.hub.describing import describe_calibration
from hf_specverify.hub.figures import Figures
from hf_specverify.scheduling import CalibrationTable, CostModel
from hf_specverify.scheduling.cost_points import Point
from hf_specverify.scheduling.fingerprint import Fingerprint


def small_table(names=("S", "q"), origin=None, number=2_000):
    generator = torch.Generator().manual_seed(0)
    signals = {name: torch.rand(number, generator=generator) for name in names}
    accepted = (torch.rand(number, generator=generator) < 0.1 + 0.8 * signals[names[0]]).float()
    groups = torch.arange(number) // 10
    return CalibrationTable.fit(signals, accepted, groups, origin=origin)


def full_table(target, draft, companion=None, names=("S", "q")):
    """With everything that an origin may hold."""
    origin = describe_calibration(target, draft, companion, 4, {"do_sample": True, "temperature": 0.8, "top_k": 0})
    table = small_table(names)
    figures = Figures.of(table.information_gain(), table.calibration_error())
    data = {"name": "someone/prompts", "revision": "a" * 40, "sha256": "b" * 64, "num_prompts": 12}
    origin = replace(origin, figures=figures, data=data, command="specverify calibrate --seed 3", seed=3)
    return replace(table, origin=origin)


def small_costs(models):
    points = [
        Point(role, 8, batch, tokens, 1e-4 * (1 + tokens)) for role in models for batch in (1, 4) for tokens in (1, 8)
    ]
    return CostModel(points, Fingerprint.of(models))
