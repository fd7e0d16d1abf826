"""The draft tokens of one sequence, as a tree: what a verifier decides on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .checks import check_ids, check_laws, check_tokens

NULL = -1
"""In lists of nodes: the null token, a draft that a schedule did not admit. The target never emits it."""


@dataclass(frozen=True, eq=False)
class DraftTree:
    """The draft tokens of one sequence, with the laws that they were drawn from.

    Build one with `chain`, `from_paths`, `from_parents` or `deterministic`.

    Attributes:
        tokens: (N,) long, the token of every node. A parent comes before its children.
        parents: (N,) long, the index of every node's parent; -1 means the root (the last committed token).
        paths: (K, L) long, the nodes of the K walks from the root to a leaf, in the order in which they were drawn;
            -1 behind the end of a walk. Walks with equal prefixes share nodes.
        laws: (M, V), the draft's laws; None where every token is deterministic, its law one-hot on itself.
        law_of: (N + 1,) long, the row of `laws` that the root's children (entry 0) and those of node i (entry i + 1)
            were drawn from; -1 where the block simply ended. Where it was cut, the row of the leaf holds the admitted
            part q·v. A law may sum to less than 1: the missing mass is that of a null token, which the target never
            emits.
    """

    tokens: Tensor
    parents: Tensor
    paths: Tensor
    laws: Tensor | None
    law_of: Tensor

    @classmethod
    def chain(cls, tokens: Tensor, q: Tensor) -> DraftTree:
        """Build the tree of a single path.

        Args:
            tokens: (L,) integer token ids, in order; L = 0 is allowed.
            q: (L + 1, V) floating point: row i is the law that token i was drawn from; the last row is zeros where the
                block simply ended (the next token is the bonus, from the target), or the admitted part of the law
                where it was cut.

        Raises:
            ValueError: if a shape, a dtype, a token id or a row of q is not as described.
        """
        check_tokens(tokens)
        check_laws(q, rows=tokens.shape[0] + 1)
        check_ids(tokens, q.shape[1])
        nodes = torch.arange(tokens.shape[0], device=tokens.device)
        law_of = torch.arange(tokens.shape[0] + 1, device=tokens.device)
        law_of[-1] = law_of[-1].where(q[-1].any().to(law_of.device), -1)
        return cls(tokens.long(), nodes - 1, nodes[None], q, law_of)

    @classmethod
    def from_paths(cls, tokens: Tensor, q: Tensor) -> DraftTree:
        """Merge K paths: equal prefixes become one node. `paths` keeps the K walks.

        Args:
            tokens: (K, L) integer token ids; -1 behind the end of a path that is shorter than others.
            q: (K, L + 1, V): row i of a path is the law that its token i was drawn from, given its own prefix; the row
                at its end as the last one in `chain`. Rows behind the end are not looked at.

        Raises:
            ValueError: if a shape, a dtype, a token id or a row of q is not as described, or paths with the same prefix
                have different laws there.
        """
        if tokens.ndim != 2 or not tokens.shape[0]:
            raise ValueError(f"tokens must have the shape (K, L) with K ≥ 1, got {tuple(tokens.shape)}")
        check_tokens(tokens.flatten())
        walks = [_until_end(row) for row in tokens.tolist()]
        if q.ndim != 3 or q.shape[:2] != (tokens.shape[0], tokens.shape[1] + 1):
            raise ValueError(
                f"q must have the shape ({tokens.shape[0]}, {tokens.shape[1] + 1}, V), one row more than tokens, "
                f"got {tuple(q.shape)}"
            )
        for walk, laws in zip(walks, q, strict=True):
            check_laws(laws[: len(walk) + 1], rows=len(walk) + 1)
        check_ids(torch.tensor([token for walk in walks for token in walk]), q.shape[2])
        layout = merge_walks(walks)
        law_of = _merged_laws(walks, layout.paths, layout.size, q)
        return cls(
            torch.tensor(layout.tokens, dtype=torch.long, device=tokens.device),
            torch.tensor(layout.parents, dtype=torch.long, device=tokens.device),
            torch.tensor(
                [walk + [-1] * (tokens.shape[1] - len(walk)) for walk in layout.paths],
                dtype=torch.long,
                device=tokens.device,
            ).reshape(tokens.shape),
            q.flatten(0, 1),
            torch.tensor(law_of, device=tokens.device),
        )

    @classmethod
    def from_parents(cls, tokens: Tensor, parents: Tensor, q: Tensor | None) -> DraftTree:
        """Build any tree whose siblings are different tokens, in the order in which they were drawn.

        Args:
            tokens: (N,) integer token ids.
            parents: (N,) integer: the parent of every node, which comes before it; -1 is the root.
            q: (N + 1, V): row 0 is the law that the root's children were drawn from (without replacement), row i + 1
                the law of the children of node i; at a leaf as the last row in `chain`. None: every token is
                deterministic.

        Raises:
            ValueError: if a shape, a dtype, a token id, a parent or a row of q is not as described.
        """
        check_tokens(tokens)
        nodes, above = tokens.shape[0], parents.tolist()
        if parents.shape != tokens.shape or not all(-1 <= parent < node for node, parent in enumerate(above)):
            raise ValueError(f"parents must be {nodes} indices of earlier nodes or -1, got {above}")
        if len(set(zip(above, tokens.tolist(), strict=True))) < nodes:
            raise ValueError(f"tokens must differ between siblings, got {tokens.tolist()} with parents {above}")
        law_of = torch.full((nodes + 1,), -1, device=tokens.device)
        if q is not None:
            check_laws(q, rows=nodes + 1)
            check_ids(tokens, q.shape[1])
            law_of = torch.where(q.any(dim=-1).to(tokens.device), torch.arange(nodes + 1, device=tokens.device), -1)
        paths = torch.tensor(_walks_to_leaves(above), dtype=torch.long, device=tokens.device)
        return cls(tokens.long(), parents.long(), paths, q, law_of)

    @property
    def num_nodes(self) -> int:
        """N, the number of draft tokens."""
        return self.tokens.shape[0]

    @property
    def q(self) -> Tensor:
        """(N + 1, V): the law at the root and after every node, zeros where the block simply ended; a copy.

        Raises:
            ValueError: for a deterministic tree, whose laws are one-hot on each token by itself.
        """
        if self.laws is None:
            raise ValueError("q: a deterministic tree has no laws; every token's own is one-hot on it")
        rows = self.laws[self.law_of.clamp(min=0)]
        return rows.masked_fill_((self.law_of < 0)[:, None].to(rows.device), 0)

    @property
    def is_chain(self) -> bool:
        """Whether every node is the only child of the one before it."""
        chain = torch.arange(-1, self.num_nodes - 1, device=self.parents.device)
        return bool(torch.equal(self.parents, chain))

    @property
    def depths(self) -> Tensor:
        """(N,) long: steps from the root, 1 for its children."""
        depths: list[int] = []
        for parent in self.parents.tolist():
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return torch.tensor(depths, dtype=torch.long, device=self.parents.device)

    def law(self, node: int) -> Tensor | None:
        """(V,) the law that the children of a node (-1: of the root) were drawn from; no copy.

        None where nothing was drawn: at the end of a block that simply ended, and everywhere in a deterministic tree.
        """
        row = int(self.law_of[node + 1])
        return None if row < 0 or self.laws is None else self.laws[row]

    def draws(self, node: int) -> list[int]:
        """What was drawn after a node (-1: the root), in order: one child, or `NULL`, for every walk through it.

        Independent walks may have drawn the same child, which then stands there several times.
        """
        drawn: list[int] = []
        was_drawn = self.law(node) is not None
        for walk in self.paths.tolist():
            place = walk.index(node) if node in walk and node >= 0 else -1
            if node >= 0 and place < 0:
                continue
            after = walk[place + 1] if place + 1 < len(walk) else -1
            if after >= 0:
                drawn.append(after)
            elif was_drawn:
                drawn.append(NULL)
        return drawn

    def children(self, node: int) -> list[int]:
        """The different children of a node (-1: the root), and `NULL` where one was drawn, in order of first draw."""
        return list(dict.fromkeys(self.draws(node)))


@dataclass(frozen=True)
class MergedWalks:
    """Walks with equal prefixes as one tree: token and parent of every node, and the nodes of every walk."""

    tokens: list[int]
    parents: list[int]
    paths: list[list[int]]

    @property
    def size(self) -> int:
        """N, the number of nodes."""
        return len(self.tokens)


def merge_walks(walks: list[list[int]]) -> MergedWalks:
    """Give every prefix one node; a parent comes before its children."""
    tokens: list[int] = []
    parents: list[int] = []
    paths: list[list[int]] = []
    known: dict[tuple[int, int], int] = {}
    for walk in walks:
        node, path = -1, []
        for token in walk:
            found = known.get((node, token))
            if found is None:
                found = known[node, token] = len(tokens)
                tokens.append(token)
                parents.append(node)
            node = found
            path.append(node)
        paths.append(path)
    return MergedWalks(tokens, parents, paths)


def _merged_laws(walks: list[list[int]], paths: list[list[int]], size: int, q: Tensor) -> list[int]:
    """Rows of the flattened q (K · (L + 1), V) for the root and every node; -1 where the block simply ended."""
    law_of = [-1] * (size + 1)
    rows = q.shape[1]
    seen: set[int] = set()
    for walk, (tokens, path) in enumerate(zip(walks, paths, strict=True)):
        for place, node in enumerate([-1, *path]):
            row, known = walk * rows + place, law_of[node + 1]
            ended = not bool(q[walk, place].any())
            if node in seen and ended != (known < 0):
                raise ValueError(f"q must be the same for equal prefixes, but path {walk} ends after {tokens[:place]}")
            seen.add(node)
            if ended:
                continue
            if known < 0:
                law_of[node + 1] = row
            elif not torch.allclose(q[walk, place], q[known // rows, known % rows], rtol=1e-3, atol=1e-6):
                raise ValueError(
                    f"q must be the same for equal prefixes, but path {walk} differs after {tokens[:place]}"
                )
    return law_of


def _walks_to_leaves(parents: list[int]) -> list[list[int]]:
    """The walks to all leaves, in the order of their first turn; at least one, which may be empty."""
    leaves = [node for node in range(len(parents)) if node not in parents]
    walks = []
    for leaf in leaves:
        walk, node = [], leaf
        while node >= 0:
            walk.append(node)
            node = parents[node]
        walks.append(walk[::-1])
    walks.sort()
    longest = max((len(walk) for walk in walks), default=0)
    return [walk + [-1] * (longest - len(walk)) for walk in walks] or [[]]


def _until_end(row: list[int]) -> list[int]:
    return row[: row.index(-1)] if -1 in row else row
