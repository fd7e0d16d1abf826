"""The verifiers, by name."""

from __future__ import annotations

from hf_specverify.verification.base import BatchVerdict, Verdict, Verifier, VerifierInfo
from hf_specverify.verification.draws import Draws, GeneratorDraws
from hf_specverify.verification.greedy import verify_greedy
from hf_specverify.verification.token import TokenVerification

__all__ = [
    "BatchVerdict",
    "Draws",
    "GeneratorDraws",
    "TokenVerification",
    "Verdict",
    "Verifier",
    "VerifierInfo",
    "get_verifier",
    "register_verifier",
    "verifiers",
    "verify_greedy",
]

_REGISTRY: dict[str, Verifier] = {}


def register_verifier(verifier: Verifier) -> None:
    """Make a verifier available under `verifier.info.name`.

    Raises:
        TypeError: if it is not an instance of `Verifier`.
        ValueError: if the name is taken.
    """
    if not isinstance(verifier, Verifier):
        raise TypeError(f"verifier must be an instance of Verifier, got {verifier!r}")
    if verifier.info.name in _REGISTRY:
        raise ValueError(f"verifier must have a new name, got {verifier.info.name!r}, which is registered already")
    _REGISTRY[verifier.info.name] = verifier


def verifiers() -> dict[str, VerifierInfo]:
    """Return what every registered verifier says of itself, by name."""
    return {name: verifier.info for name, verifier in _REGISTRY.items()}


def get_verifier(name: str) -> Verifier:
    """Return the verifier of that name.

    Raises:
        ValueError: if there is none.
    """
    if name not in _REGISTRY:
        raise ValueError(f"verification must be one of {', '.join(sorted(_REGISTRY))}; got {name!r}")
    return _REGISTRY[name]


register_verifier(TokenVerification())
