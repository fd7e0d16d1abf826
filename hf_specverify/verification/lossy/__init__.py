"""Rules that trade the target's law for acceptance, each with the law that it has instead."""

from .cascade import Cascade
from .ceiling import Cactus, CeilingRule, Lenience
from .fuzzy import Fuzzy
from .mentored import Mentored
from .mixture import Collaborative, Contrastive, MixtureRule
from .one_step import OneStepRule
from .rule import LossyRule
from .truncation import MinP, TruncationRule, Typical

__all__ = [
    "Cactus",
    "Cascade",
    "CeilingRule",
    "Collaborative",
    "Contrastive",
    "Fuzzy",
    "Lenience",
    "LossyRule",
    "Mentored",
    "MinP",
    "MixtureRule",
    "OneStepRule",
    "TruncationRule",
    "Typical",
]
