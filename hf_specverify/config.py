"""Every option of speculative decoding, once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from .verification import Verifier, VerifierInfo, get_verifier, verifiers

VERIFY_LENGTHS = ("fixed", "goodput", "auto")
DRAFT_LENGTHS = ("fixed", "goodput")


@dataclass(frozen=True)
class SpeculationConfig:
    """How to speculate.

    Raises:
        ValueError, TypeError: for a value that is not allowed; the message names the option, the value and what is.
    """

    verification: str = "token"
    """Name of the verifier, one of `hf_specverify.verifiers()`."""

    verification_options: Mapping[str, Any] | None = None
    """Parameters of the verifier, by name, for those that have some: the lossy ones."""

    num_draft_tokens: int | None = None
    """Tokens drafted per step and row; None leaves it to the drafter (5 for a model, 10 for prompt lookup)."""

    num_draft_paths: int = 1
    """Draft paths per step and row, for the verifiers that take trees or paths; equal prefixes are scored once."""

    verify_length: str = "fixed"
    """How many of the drafted tokens the target scores: `fixed`, all of them; `goodput`, those that are expected to
    pay, by a calibration and the costs of the models; or `auto`: plain decoding, stopped drafts or cuts, with or
    without the companion, whatever promises the most tokens per second by costs and by what was accepted so far.
    `auto` does without a calibration, and follows the text. So does `goodput` with dynamic trees, where it chooses
    nodes; `auto` takes single chains only."""

    draft_length: str = "fixed"
    """How many tokens are drafted: `fixed`, num_draft_tokens; or `goodput`: a row stops where one more is not expected
    to pay, by a calibration of the draft's own signals."""

    calibration: Any = None
    """Predicts acceptance: a `CalibrationTable`, its folder, `user/name` on the Hub, or the name of a shipped one."""

    online_calibration: bool = False
    """Let the calibration follow what is accepted in this call; it is the prior."""

    costs: Any = None
    """A `CostModel`, or the path of a saved one. None takes the `cost_table.json` in the calibration's folder or
    repository if it is of this machine and these models, and else measures them in the first call that needs it."""

    draft_temperature: float | None = None
    """Temperature of the draft model while the target samples; None means the target's, 0 the most likely token."""

    require_lossless: bool = False
    """Refuse a verifier that changes the output law."""

    def __post_init__(self) -> None:
        known = verifiers()
        _check(isinstance(self.verification, str) and self.verification in known, self, "verification", sorted(known))
        self._check_verification_options()
        _check_integer(self, "num_draft_tokens", optional=True)
        _check_integer(self, "num_draft_paths")
        self._check_paths(known)
        _check(self.verify_length in VERIFY_LENGTHS, self, "verify_length", list(VERIFY_LENGTHS))
        _check(self.draft_length in DRAFT_LENGTHS, self, "draft_length", list(DRAFT_LENGTHS))
        _check_temperature(self)
        for name in ("require_lossless", "online_calibration"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name}={getattr(self, name)!r}: allowed are True and False")
        if self.require_lossless and not known[self.verification].lossless:
            lossless = sorted(name for name, info in known.items() if info.lossless)
            raise ValueError(
                f"verification={self.verification!r} changes the output law, and require_lossless=True forbids that; "
                f"allowed: {lossless}"
            )

    def _check_verification_options(self) -> None:
        if self.verification_options is None:
            return
        if not isinstance(self.verification_options, Mapping):
            raise TypeError(f"verification_options={self.verification_options!r}: allowed are a mapping and None")
        get_verifier(self.verification, **self.verification_options)

    @property
    def verifier(self) -> Verifier:
        """The verifier, with its parameters."""
        return get_verifier(self.verification, **(self.verification_options or {}))

    def _check_paths(self, known: Mapping[str, VerifierInfo]) -> None:
        if self.num_draft_paths > 1 and known[self.verification].structure == "chain":
            takers = sorted(name for name, info in known.items() if info.structure != "chain")
            raise ValueError(
                f"num_draft_paths={self.num_draft_paths}: verification={self.verification!r} takes single chains; "
                f"allowed: 1, or one of the verifiers {takers}"
            )

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """The names of all options."""
        return tuple(field.name for field in fields(cls))

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> SpeculationConfig:
        """Build one from keyword arguments.

        Raises:
            TypeError: naming an option that does not exist.
        """
        unknown = sorted(set(options) - set(cls.option_names()))
        if unknown:
            raise TypeError(f"unknown options {unknown}: allowed are {list(cls.option_names())}")
        return cls(**options)


def _check(valid: bool, config: SpeculationConfig, name: str, allowed: object) -> None:
    if not valid:
        raise ValueError(f"{name}={getattr(config, name)!r}: allowed is {allowed}")


def _check_integer(config: SpeculationConfig, name: str, optional: bool = False) -> None:
    value = getattr(config, name)
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r}: allowed are integers from 1{' or None' if optional else ''}")
    _check(value >= 1, config, name, "an integer from 1")


def _check_temperature(config: SpeculationConfig) -> None:
    value = config.draft_temperature
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"draft_temperature={value!r}: allowed are numbers from 0, or None")
    _check(0 <= value < float("inf"), config, "draft_temperature", "a finite number from 0, or None")
