"""How much to draft and to verify."""

from .calibration import CalibrationTable
from .cost import CostModel
from .cutoff import admission_cutoff
from .draft_stop import worth_drafting
from .drawn import DrawnSchedule, admitted, schedule_drawn
from .fixed import FixedLength
from .goodput import BatchSchedule, expected_accepted, goodput_by_length, goodput_length, schedule_batch
from .information import Information, InformationTable
from .quality import CalibrationError, Quality, Reliability
from .signal_values import compute_signals, vocabulary_signals
from .signals import SIGNALS, Signal

__all__ = [
    "SIGNALS",
    "BatchSchedule",
    "CalibrationError",
    "CalibrationTable",
    "CostModel",
    "DrawnSchedule",
    "FixedLength",
    "Information",
    "InformationTable",
    "Quality",
    "Reliability",
    "Signal",
    "admission_cutoff",
    "admitted",
    "compute_signals",
    "expected_accepted",
    "goodput_by_length",
    "goodput_length",
    "schedule_batch",
    "schedule_drawn",
    "vocabulary_signals",
    "worth_drafting",
]
