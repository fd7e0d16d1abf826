"""What a speculative run did: one record per step, and the report computed from the records."""

from .report import FORWARD_PHASES, MODES, PHASES, SpeculationReport, StepRecord

__all__ = ["FORWARD_PHASES", "MODES", "PHASES", "SpeculationReport", "StepRecord"]
