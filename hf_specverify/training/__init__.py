"""Training of feature heads."""

from .settings import HeadTraining
from .training import HeadReport, train_head

__all__ = ["HeadReport", "HeadTraining", "train_head"]
