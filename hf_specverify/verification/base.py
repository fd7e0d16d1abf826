"""What every verifier takes, returns and says of itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:  # the drafting package imports the draws of this one
    from hf_specverify.drafting.batch import DraftBatch
    from hf_specverify.drafting.tree import DraftTree
    from hf_specverify.drafting.tree_batch import TreeBatch
    from hf_specverify.verification.draws import Draws

DraftKind = Literal["independent", "without_replacement", "deterministic"]
"""How the tokens after a node were drawn: independently of each other from one law; from it without replacement; or not
drawn at all, the law of every token being one-hot on it."""


@dataclass(frozen=True)
class VerifierInfo:
    """What a verifier says of itself.

    Attributes:
        name: the name that selects it.
        lossless: whether the output has exactly the law of sampling the target, for every draft that it takes.
        structure: the drafts it can take: single chains, trees, or several paths drawn independently.
        paper: where the rule comes from, paper and section.
        summary: the rule in one sentence.
        drafts: how tokens may have been drawn where a node has several children; the first is what a draft model does
            by default. On a chain every kind is the same.
    """

    name: str
    lossless: bool
    structure: Literal["chain", "tree", "paths"]
    paper: str
    summary: str
    drafts: tuple[DraftKind, ...] = ("independent", "deterministic")


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
    """The decisions on a batch, on the target's device.

    Attributes:
        accepted: (B,) long, how many tokens of each row are accepted.
        next_token: (B,) long, the verifier's own token after them.
        path: (B, D) long, the accepted nodes of each row's tree, ignored beyond their number; None for chains, whose
            nodes stand in order.
    """

    accepted: Tensor
    next_token: Tensor
    path: Tensor | None = None


class Verifier(ABC):
    """A rule that decides which draft tokens stay and which token follows them.

    A verifier holds no state and draws only through the `Draws` that it is given, so that its exact output law can be
    computed (`hf_specverify.testing`). `verify` is all that a verifier must have.
    """

    info: VerifierInfo

    @property
    def description(self) -> str:
        """What the report calls it: its name, and its parameters if it has any."""
        return self.info.name

    @property
    def matches_greedy(self) -> bool:
        """Whether under a greedy target it emits the target's own choices only; where not, such a target is refused."""
        return True

    @abstractmethod
    def verify(self, tree: DraftTree, p: Tensor, draws: Draws) -> Verdict:
        """Decide on one tree: the readable form of the rule.

        Args:
            tree: the draft tokens and their laws, which may be sub-distributions (see `DraftTree`).
            p: (N + 1, V), the target's laws: row 0 at the root, row i + 1 after node i.
            draws: the source of randomness.

        Raises:
            ValueError: if p has the wrong shape or the rule cannot take such a tree.
        """

    def verify_batch(self, drafts: DraftBatch | TreeBatch, p: Tensor, draws: Draws) -> BatchVerdict:
        """Decide on the rows of a batch, here one after the other; a faster form must decide the same.

        Args:
            drafts: the proposals; positions and nodes beyond a row's own do not exist.
            p: (B, N + 1, V), the target's laws: row 0 at the root, row i + 1 after token or node i.
            draws: the source of randomness.

        Raises:
            ValueError: as `verify`.
        """
        verdicts = []
        for row, size in enumerate(drafts.lengths):
            tree = drafts.tree(row, p.shape[2])
            verdicts.append(self.verify(tree, p[row, : size + 1], draws))
        longest = max((len(verdict.path) for verdict in verdicts), default=0)
        path = torch.stack([torch.nn.functional.pad(v.path, (0, longest - len(v.path))) for v in verdicts])
        accepted = torch.tensor([len(verdict.path) for verdict in verdicts]).to(p.device)
        return BatchVerdict(accepted, torch.stack([verdict.next_token for verdict in verdicts]), path)

    def drafted_acceptance(self, drafts: DraftBatch, p: Tensor) -> Tensor:
        """(B, L) the probability that each drafted token is accepted by itself, from which schedules learn.

        Anything beyond a row's length. Here min(1, p/q), that of token verification.
        """
        return token_acceptance(drafts, p)


def token_acceptance(drafts: DraftBatch, p: Tensor) -> Tensor:
    """(B, L) the probability min(1, p/q) that each drafted token is accepted by itself; without q, p of the token."""
    tokens = drafts.tokens[..., None]
    p_drafted = p[:, :-1].gather(2, tokens).squeeze(2)
    if drafts.q is None:
        return p_drafted
    return acceptance_probability(p_drafted, drafts.q.gather(2, tokens).squeeze(2))


def child_probability(trees: TreeBatch, p: Tensor) -> Tensor:
    """(B, N) p of every node's token after its parent: if nothing was drawn, the probability that it is accepted then.

    Verifiers for deterministic drafts agree in it, in whatever order they test siblings.

    Args:
        trees: the trees; laws are not looked at.
        p: (B, N + 1, V), the target's laws.
    """
    rows = torch.arange(len(p), device=p.device)[:, None]
    return p[rows, trees.parents + 1, trees.tokens]


def leading_run(flags: Tensor) -> Tensor:
    """Count the True entries before the first False one along the last dimension: (…, L) bool -> (…) long."""
    return flags.long().cumprod(dim=-1).sum(dim=-1)


def wide(values: Tensor) -> Tensor:
    """Half precision values as float32, others as they are."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def acceptance_probability(p: Tensor, q: Tensor) -> Tensor:
    """Return min(1, p / q), elementwise; 1 where only q is 0, and 0 where both are."""
    return torch.where(p >= q, (p > 0).to(p.dtype), p / q)


def check_target(tree: DraftTree, p: Tensor) -> None:
    """Check the target's laws for a tree.

    Raises:
        ValueError: if p is not (N + 1, V), with the V of the draft's laws where there are any.
    """
    vocabulary = p.shape[-1] if tree.laws is None else tree.laws.shape[1]
    if p.shape != (tree.num_nodes + 1, vocabulary):
        raise ValueError(f"p must have the shape ({tree.num_nodes + 1}, {vocabulary}), got {tuple(p.shape)}")


def check_chain(tree: DraftTree, p: Tensor, name: str) -> None:
    """Check the arguments of a verifier that takes chains only.

    Raises:
        ValueError: if `tree` is no chain or `p` does not fit it.
    """
    if not tree.is_chain:
        raise ValueError(f"tree must be a chain for the verifier {name!r}, got parents {tree.parents.tolist()}")
    check_target(tree, p)


def check_batch(drafts: DraftBatch, p: Tensor) -> None:
    """Check the shapes of a batch; values are not looked at, for that would wait for the device.

    Raises:
        ValueError: if p is not (B, L + 1, V), with the V of q where there is one.
    """
    rows, length = drafts.tokens.shape
    expected = (rows, length + 1, p.shape[-1] if drafts.q is None else drafts.q.shape[2])
    if p.shape != expected:
        raise ValueError(f"p must have the shape {expected}, one row more than the drafts, got {tuple(p.shape)}")
