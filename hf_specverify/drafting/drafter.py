"""What a drafter is: it proposes tokens for the rows of a batch, and says what law they were drawn from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.generation.candidate_generator import CandidateGenerator

from ..decoding.processors import ProcessorPlan
from ..decoding.runner import Runner
from ..decoding.state import BatchState
from ..decoding.timing import Stopwatch
from ..verification.base import VerifierInfo
from .batch import DraftBatch
from .tree_batch import TreeBatch


@dataclass(frozen=True)
class DraftingCall:
    """What a drafter is told at the start of a call.

    Attributes:
        target: the target model; read, never called.
        runner: the target's, for drafters that have made it theirs (`Drafter.target_runner`).
        state: the batch.
        plan: the target's processors.
        sampling: whether the target samples; if not, drafts are the draft's most likely tokens.
        draft_temperature: the user's temperature for drafts, or None for the target's.
        generator: the user's generator, or None for the global one.
        stopwatch: gets the seconds of the draft's forwards as `draft`.
        prefill_chunk: tokens per prefill forward, or None.
        tokenizers: of target and draft, where the user gave them.
        verifier: what the call's verifier says of itself.
        num_paths: draft paths per row and step.
        takes_trees: whether the target's layout can score trees.
        signals: the draft's own signals that the schedule wants with each token, see `scheduling.signals`.
        stopper: decides during drafting which rows go on; None: all, up to their lengths.
    """

    target: Any
    runner: Runner
    state: BatchState
    plan: ProcessorPlan
    sampling: bool
    draft_temperature: float | None
    generator: torch.Generator | None
    stopwatch: Stopwatch
    prefill_chunk: int | None
    tokenizers: tuple[Any, Any]
    verifier: VerifierInfo
    num_paths: int
    takes_trees: bool
    signals: tuple[str, ...] = ()
    stopper: DraftStopper | None = None


class DraftStopper(Protocol):
    """Stops the drafting of rows that promise too little."""

    def after(self, drafted: int, signals: dict[str, Tensor], lengths: list[int]) -> list[int]:
        """New draft lengths, now that `drafted` tokens of every row have been drawn.

        Args:
            drafted: tokens drawn so far; a row stopped now keeps them all.
            signals: (A,) of the last token drawn.
            lengths: draft lengths by row so far.
        """


class DraftSession(ABC):
    """A drafter at work on one call: all its state is here, so calls don't see each other."""

    @abstractmethod
    def propose(self, state: BatchState, lengths: list[int]) -> DraftBatch | TreeBatch:
        """Propose up to lengths[i] tokens, or levels of a tree, for each active row, on the target's device."""

    def see(self, states: Sequence[Tensor], prompt: Sequence[Sequence[Tensor]]) -> None:  # noqa: B027 - optional
        """Look at the target's hidden states, if the drafter asked for some (`Drafter.target_layers`); before `commit`.

        Args:
            states: by layer (A, n, H): entry i is that of the i-th token from the one that was last when the step
                began; those of accepted tokens count, up to where the row was stopped.
            prompt: the same of the prompt up to its last but one token, in parts along tokens, of all rows. For the
                first step; later it may be empty.
        """

    @abstractmethod
    def commit(self, state: BatchState, accepted: list[int], scores: Tensor | None, path: Tensor | None) -> None:
        """Learn the outcome, after the state has it.

        Args:
            state: the batch, the rows that are about to leave still among the active ones.
            accepted: draft tokens accepted by active row.
            scores: (A, n, V) the target's processed scores at the committed positions, if they are kept.
            path: (A, D) the accepted nodes of trees; None for chains.
        """

    @abstractmethod
    def select(self, places: list[int]) -> None:
        """Keep the active rows at the given places."""


class _AnyConfig:
    """A configuration that agrees with every other; see `Drafter.config`."""

    def get_text_config(self) -> _AnyConfig:
        return self

    def __getattr__(self, name: str) -> _AnyConfig:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class Drafter(CandidateGenerator, ABC):
    """Proposes candidate tokens; give one to generate as `assistant_model=`.

    It is a Transformers `CandidateGenerator` by type, and one that serves batches: `start` opens a session per call in
    place of `get_candidates`, which knows one row and no law.

    `default_num_draft_tokens` is used where the user gives no `num_draft_tokens`; `signals` are the names of those that
    it can give with its tokens (`scheduling.signals`).
    """

    default_num_draft_tokens = 5
    signals: frozenset[str] = frozenset()

    @property
    @abstractmethod
    def name(self) -> str:
        """What the report calls it."""

    @property
    def config(self) -> Any:
        """What the host's `pipeline(assistant_model=…)` compares with the target's: it agrees with any.

        Whether drafter and target fit is for `start` to say.
        """
        return _AnyConfig()

    def drafting_model(self, target: Any) -> Any:
        """The model whose forwards are the cost of drafting for a target; None where there is none."""
        return None

    def target_runner(self, runner: Runner) -> Runner:
        """The target's runner for one call: what is given, or one that shares work with drafting.

        Raises:
            ValueError: if this drafter can't draft for that target.
        """
        return runner

    def target_layers(self, target: Any) -> tuple[int, ...]:
        """The target's hidden states that sessions want to see, as indices into those of `output_hidden_states`."""
        return ()

    @abstractmethod
    def start(self, call: DraftingCall) -> DraftSession:
        """Begin a call.

        Raises:
            ValueError: if this drafter can't draft for the call's target.
        """


def one_path_only(drafter: Drafter, call: DraftingCall) -> None:
    """Refuse several paths of a drafter that has one.

    Raises:
        ValueError: naming the option.
    """
    if call.num_paths != 1:
        raise ValueError(f"num_draft_paths={call.num_paths}: {drafter.name} drafts one path; allowed is 1")
