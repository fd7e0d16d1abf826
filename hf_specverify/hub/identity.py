"""Which model something was measured with: its name where it has one, and fingerprints where names don't help."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from . import records


@dataclass(frozen=True)
class ModelIdentity:
    """A model as it was in memory.

    Attributes:
        id: its name on the Hub; None for one from a folder, whose place is nobody's business.
        revision: its commit, if known.
        architecture: its class.
        quantization: "nf4", "fp4", "int8" or another method's name; None for dense weights.
        dtype: of what is not quantised, such as "bfloat16".
        device: "cpu", "cuda", …
        vocab_size: rows of its head.
        vocabulary_sha256, tokenizer_sha256: see `vocabularies`; None where no tokenizer was at hand.
        weights_sha256: see `weights_hash`.
    """

    id: str | None
    revision: str | None
    architecture: str
    quantization: str | None
    dtype: str
    device: str
    vocab_size: int
    vocabulary_sha256: str | None = None
    tokenizer_sha256: str | None = None
    weights_sha256: str | None = None

    @property
    def label(self) -> str:
        """A short name for people."""
        name = self.id or f"a local {self.architecture}"
        return name if self.quantization is None else f"{name} ({self.quantization})"

    def to_record(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_record(cls, role: str, record: Any) -> ModelIdentity:
        """Read what `to_record` gave.

        Raises:
            ValueError: naming the field.
        """
        names = tuple(field.name for field in fields(cls))
        record = records.fields(role, record, names)
        hashes = {name: records.text(f"{role}.{name}", record[name], records.HASH) for name in names[-3:]}
        return cls(
            id=records.hub_id(f"{role}.id", record["id"]),
            revision=records.text(f"{role}.revision", record["revision"], records.REVISION),
            quantization=records.text(f"{role}.quantization", record["quantization"]),
            vocab_size=records.integer(f"{role}.vocab_size", record["vocab_size"], 1),
            architecture=records.needed_text(f"{role}.architecture", record["architecture"]),
            dtype=records.needed_text(f"{role}.dtype", record["dtype"]),
            device=records.needed_text(f"{role}.device", record["device"]),
            **hashes,
        )
