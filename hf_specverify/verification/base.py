"""What every verifier takes, returns and says of itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import Tensor

if TYPE_CHECKING:  # the drafting package imports the draws of this one
    from hf_specverify.drafting.tree import DraftBatch, DraftTree
    from hf_specverify.verification.draws import Draws


@dataclass(frozen=True)
class VerifierInfo:
    """What a verifier says of itself.

    Attributes:
        name: the name that selects it.
        lossless: whether the output has exactly the law of sampling the target, for every draft.
        structure: the drafts it can take: single chains, trees, or several paths.
        paper: where the rule comes from.
        summary: the rule in one sentence.
    """

    name: str
    lossless: bool
    structure: Literal["chain", "tree", "paths"]
    paper: str
    summary: str


@dataclass(frozen=True, eq=False)
class Verdict:
    """The decision on one tree.

    Attributes:
        path: (a,) long, the accepted nodes, from the root's child to the last one.
        next_token: () long, the verifier's own token after them.
    """

    path: Tensor
    next_token: Tensor


@dataclass(frozen=True, eq=False)
class BatchVerdict:
    """The decisions on a batch of chains, on the target's device.

    Attributes:
        accepted: (B,) long, how many tokens of each row are accepted.
        next_token: (B,) long, the verifier's own token after them.
    """

    accepted: Tensor
    next_token: Tensor


class Verifier(ABC):
    """A rule that decides which draft tokens stay and which token follows them.

    A verifier holds no state and draws only through the `Draws` that it is given, so that its exact output law can be
    computed (`hf_specverify.testing`).
    """

    info: VerifierInfo

    @abstractmethod
    def verify(self, tree: DraftTree, p: Tensor, draws: Draws) -> Verdict:
        """Decide on one tree: the readable form of the rule.

        Args:
            tree: the draft tokens and their laws; rows of q may be sub-distributions (see `DraftTree`).
            p: (N + 1, V), the target's laws: row 0 at the root, row i + 1 after node i.
            draws: the source of randomness.

        Raises:
            ValueError: if p has the wrong shape or the rule cannot take such a tree.
        """

    @abstractmethod
    def verify_batch(self, drafts: DraftBatch, p: Tensor, draws: Draws) -> BatchVerdict:
        """Decide on the chains of a batch, without a loop over rows or tokens and without waiting for the device.

        Args:
            drafts: the proposals; positions beyond a row's length do not exist.
            p: (B, L + 1, V), the target's laws: row i at the place of token i; row `lengths[b]` is that of the bonus.
            draws: the source of randomness.

        Raises:
            ValueError: if p has the wrong shape.
        """


def leading_run(flags: Tensor) -> Tensor:
    """Count the True entries before the first False one along the last dimension: (…, L) bool -> (…) long."""
    return flags.long().cumprod(dim=-1).sum(dim=-1)


def check_chain(tree: DraftTree, p: Tensor, name: str) -> None:
    """Check the arguments of a verifier that takes chains only.

    Raises:
        ValueError: if `tree` is no chain or `p` does not have the shape of `tree.q`.
    """
    if not tree.is_chain:
        raise ValueError(f"tree must be a chain for the verifier {name!r}, got parents {tree.parents.tolist()}")
    if p.shape != tree.q.shape:
        raise ValueError(f"p must have the shape of tree.q, {tuple(tree.q.shape)}, got {tuple(p.shape)}")


def check_batch(drafts: DraftBatch, p: Tensor) -> None:
    """Check the shapes of a batch; values are not looked at, for that would wait for the device.

    Raises:
        ValueError: if p is not (B, L + 1, V), with the V of q where there is one.
    """
    rows, length = drafts.tokens.shape
    expected = (rows, length + 1, p.shape[-1] if drafts.q is None else drafts.q.shape[2])
    if p.shape != expected:
        raise ValueError(f"p must have the shape {expected}, one row more than the drafts, got {tuple(p.shape)}")
