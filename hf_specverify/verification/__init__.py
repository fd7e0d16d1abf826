"""The verifiers, by name."""

from __future__ import annotations

import inspect
from typing import Any, get_args

from hf_specverify.verification.base import BatchVerdict, DraftKind, Verdict, Verifier, VerifierInfo
from hf_specverify.verification.block import BlockVerification
from hf_specverify.verification.bound import optimal_acceptance
from hf_specverify.verification.draws import Draws, GeneratorDraws
from hf_specverify.verification.greedy import verify_greedy, verify_greedy_trees
from hf_specverify.verification.greedy_multipath_block import GreedyMultipathBlockVerification
from hf_specverify.verification.hierarchical import HierarchicalVerification
from hf_specverify.verification.k_seq import KSeqVerification
from hf_specverify.verification.lossy import (
    Cactus,
    Cascade,
    Collaborative,
    Contrastive,
    Fuzzy,
    Lenience,
    LossyRule,
    Mentored,
    MinP,
    Typical,
)
from hf_specverify.verification.multi_round import MultiRoundVerification
from hf_specverify.verification.multi_round_without_replacement import MultiRoundWithoutReplacementVerification
from hf_specverify.verification.naive import NaiveVerification
from hf_specverify.verification.token import TokenVerification
from hf_specverify.verification.traversal import TraversalVerification

__all__ = [
    "BatchVerdict",
    "BlockVerification",
    "DraftKind",
    "Draws",
    "GeneratorDraws",
    "GreedyMultipathBlockVerification",
    "HierarchicalVerification",
    "KSeqVerification",
    "LossyRule",
    "MultiRoundVerification",
    "MultiRoundWithoutReplacementVerification",
    "NaiveVerification",
    "TokenVerification",
    "TraversalVerification",
    "Verdict",
    "Verifier",
    "VerifierInfo",
    "get_verifier",
    "optimal_acceptance",
    "register_verifier",
    "verifiers",
    "verify_greedy",
    "verify_greedy_trees",
]

_REGISTRY: dict[str, Verifier] = {}


def register_verifier(verifier: Verifier) -> None:
    """Make a verifier available under `verifier.info.name`.

    Raises:
        TypeError: if it is not an instance of `Verifier`.
        ValueError: if the name is taken, or what it says of the drafts that it takes is unknown.
    """
    if not isinstance(verifier, Verifier):
        raise TypeError(f"verifier must be an instance of Verifier, got {verifier!r}")
    if verifier.info.name in _REGISTRY:
        raise ValueError(f"verifier must have a new name, got {verifier.info.name!r}, which is registered already")
    _check_info(verifier.info)
    _REGISTRY[verifier.info.name] = verifier


def verifiers() -> dict[str, VerifierInfo]:
    """Return what every registered verifier says of itself, by name."""
    return {name: verifier.info for name, verifier in _REGISTRY.items()}


def get_verifier(name: str, **options: Any) -> Verifier:
    """Return the verifier of that name.

    Args:
        name: one of `verifiers()`.
        options: parameters of the rule, for those that have some (the lossy ones): then one of its own is made.

    Raises:
        ValueError: if there is none of that name, or an option has a value that is not allowed.
        TypeError: naming an option that the rule does not have.
    """
    if name not in _REGISTRY:
        raise ValueError(f"verification must be one of {', '.join(sorted(_REGISTRY))}; got {name!r}")
    if not options:
        return _REGISTRY[name]
    rule = type(_REGISTRY[name])
    allowed = sorted(inspect.signature(rule).parameters)
    if unknown := sorted(set(options) - set(allowed)):
        raise TypeError(f"verification={name!r} has no options {unknown}: allowed are {allowed}")
    return rule(**options)


def _check_info(info: VerifierInfo) -> None:
    structures, kinds = ("chain", "tree", "paths"), get_args(DraftKind)
    if info.structure not in structures:
        raise ValueError(f"verifier.info.structure must be one of {structures}, got {info.structure!r}")
    if not isinstance(info.drafts, tuple) or not info.drafts or any(kind not in kinds for kind in info.drafts):
        raise ValueError(f"verifier.info.drafts must be some of {kinds}, at least one, got {info.drafts!r}")


for _verifier in (
    TokenVerification(),
    BlockVerification(),
    HierarchicalVerification(),
    GreedyMultipathBlockVerification(),
    TraversalVerification(),
    MultiRoundVerification(),
    MultiRoundWithoutReplacementVerification(),
    KSeqVerification(),
    NaiveVerification(),
    Typical(),
    MinP(),
    Lenience(),
    Collaborative(),
    Contrastive(),
    Mentored(),
    Cactus(),
    Cascade(),
    Fuzzy(),
):
    register_verifier(_verifier)
