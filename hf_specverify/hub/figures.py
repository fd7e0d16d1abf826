"""How good a calibration is, as it is written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from . import records

if TYPE_CHECKING:
    from ..scheduling.information import InformationTable
    from ..scheduling.quality import CalibrationError

MOST_SETS = 1024
MOST_POSITIONS = 1024
_QUALITY = ("samples", "ece", "brier", "auc")
_ONE = 1 + 1e-6  # and rounding


@dataclass(frozen=True)
class Figures:
    """Held-out figures.

    Attributes:
        entropy: of acceptance, in bits.
        information: bits by signal set, its names joined by commas.
        companion_bits: what the companion's signals add to the best of the draft's own; None without both.
        ece, brier, auc: of the table's predictions, see `quality.Quality`.
        positions: the same by position in the block: samples, ece, brier, auc; empty where it was not a signal.
    """

    entropy: float
    information: dict[str, float]
    companion_bits: float | None
    ece: float
    brier: float
    auc: float
    positions: dict[int, tuple[int, float, float, float]]

    @classmethod
    def of(cls, gains: InformationTable, error: CalibrationError) -> Figures:
        """Those of `CalibrationTable.information_gain()` and `.calibration_error()`."""
        overall = error.overall
        return cls(
            entropy=gains.entropy,
            information={",".join(names): gain.bits for names, gain in gains.items()},
            companion_bits=gains.companion_bits,
            ece=overall.ece,
            brier=overall.brier,
            auc=overall.auc,
            positions={
                place: (one.samples, one.ece, one.brier, one.auc) for place, one in sorted(error.by_position.items())
            },
        )

    def to_record(self) -> dict[str, Any]:
        """As JSON."""
        positions = {str(place): dict(zip(_QUALITY, values, strict=True)) for place, values in self.positions.items()}
        return asdict(self) | {"positions": positions}

    @classmethod
    def from_record(cls, record: Any) -> Figures:
        """Read what `to_record` gave.

        Raises:
            ValueError: naming the field.
        """
        record = records.fields("figures", record, tuple(field.name for field in fields(cls)))
        rates = {name: records.number(f"figures.{name}", record[name], 0, _ONE) for name in ("entropy", *_QUALITY[1:])}
        bits = record["companion_bits"]
        return cls(
            **rates,
            companion_bits=None if bits is None else records.number("figures.companion_bits", bits),
            information=_information(record["information"]),
            positions=_positions(record["positions"]),
        )


def _information(value: Any) -> dict[str, float]:
    if not isinstance(value, dict) or len(value) > MOST_SETS or not all(records.is_text(names) for names in value):
        raise records.refuse("figures.information", f"an object of up to {MOST_SETS} signal sets", value)
    return {names: records.number(f"figures.information.{names}", bits) for names, bits in value.items()}


def _positions(value: Any) -> dict[int, tuple[int, float, float, float]]:
    if not isinstance(value, dict) or len(value) > MOST_POSITIONS or not all(_is_position(place) for place in value):
        raise records.refuse("figures.positions", f"an object of up to {MOST_POSITIONS} positions", value)
    return {int(place): _quality(f"figures.positions.{place}", entry) for place, entry in value.items()}


def _is_position(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 6


def _quality(field: str, value: Mapping[str, Any]) -> tuple[int, float, float, float]:
    record = records.fields(field, value, _QUALITY)
    samples = records.integer(f"{field}.samples", record["samples"])
    ece, brier, auc = (records.number(f"{field}.{name}", record[name], 0, _ONE) for name in _QUALITY[1:])
    return samples, ece, brier, auc
