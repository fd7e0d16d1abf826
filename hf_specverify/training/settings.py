"""How a head is trained."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

PRECISIONS = ("float32", "bfloat16")
STARTS = ("last_layer", "random")
_COUNTS = (
    "draft_vocab_size",
    "unroll",
    "epochs",
    "batch_size",
    "max_new_tokens",
    "generation_batch",
    "kept",
    "checkpoint_every",
)


@dataclass(frozen=True)
class HeadTraining:
    """Everything that a training depends on besides target and texts.

    Raises:
        ValueError, TypeError: for a value that is not allowed; the message names the field, the value and what is.
    """

    target_layers: tuple[int, ...] | None = None
    """Hidden states that the head reads, as indices into those of `output_hidden_states`; None: low, middle, high."""

    draft_vocab_size: int = 8192
    """Tokens that the head scores: the most frequent ones of the texts."""

    start: str = "last_layer"
    """What the decoder layer begins with: `last_layer`, the target's where it has the same form; or `random`."""

    unroll: int = 4
    """Steps drafted in a row while training. Drafts longer than that are hardly accepted."""

    step_decay: float = 0.9
    """Weight of each of these steps against the one before."""

    epochs: int = 4
    """Times that every text is read."""

    batch_size: int = 8
    """Texts per step of the optimiser."""

    learning_rate: float = 5e-4
    """The highest; it rises for the first 5 % of the steps, and falls as a cosine to a tenth."""

    max_length: int = 512
    """Tokens of a text, its prompt included; what is longer is cut."""

    max_new_tokens: int = 256
    """Tokens of an answer that the target writes."""

    temperatures: tuple[float, ...] = (0.0, 0.7)
    """Of the answers, batch by batch in turn; 0 is greedy."""

    generation_batch: int = 32
    """Answers written at once."""

    kept: int = 64
    """Tokens of each of the target's laws that are kept, the likeliest."""

    held_out: float = 0.1
    """Share of the texts that the head is not trained on, for the acceptance that is reported, and for its acceptance
    head, which learns from half of them; at least two texts."""

    precision: str = "float32"
    """Of the training's matrix products: `float32`, or `bfloat16`, which is faster where the processor has it."""

    checkpoint_every: int = 100
    """Steps between two checkpoints, where an interrupted training goes on."""

    acceptance_epochs: int = 20
    """Times that half of the held-out texts are read to learn, with the finished head, what will be accepted; 0 leaves
    that out."""

    seed: int = 0
    """Of the order of texts, of sampled answers, and of weights that begin at random."""

    def __post_init__(self) -> None:
        for name in _COUNTS:
            self._check_integer(name, 1)
        self._check_integer("seed", 0)
        self._check_integer("acceptance_epochs", 0)
        self._check_integer("max_length", self.unroll + 3)
        self._check_number("step_decay", 0, 1)
        self._check_number("learning_rate", 0, 1)
        self._check_number("held_out", 0, 0.5)
        self._check_choice("precision", PRECISIONS)
        self._check_choice("start", STARTS)
        fine = isinstance(self.temperatures, tuple) and self.temperatures
        if not fine or not all(isinstance(value, int | float) and value >= 0 for value in self.temperatures):
            raise ValueError(f"temperatures={self.temperatures!r}: allowed is a tuple of numbers from 0, at least one")

    def _check_integer(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if type(value) is not int:
            raise TypeError(f"{name}={value!r}: allowed are integers from {least}")
        if value < least:
            raise ValueError(f"{name}={value!r}: allowed are integers from {least}")

    def _check_number(self, name: str, above: float, most: float) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{name}={value!r}: allowed are numbers above {above}, up to {most}")
        if not above < value <= most:
            raise ValueError(f"{name}={value!r}: allowed are numbers above {above}, up to {most}")

    def _check_choice(self, name: str, allowed: tuple[str, ...]) -> None:
        if getattr(self, name) not in allowed:
            raise ValueError(f"{name}={getattr(self, name)!r}: allowed are {list(allowed)}")

    def as_json(self) -> dict[str, Any]:
        """Its fields, tuples as lists."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
