from __future__ import annotations

import re

import pytest
import torch

from hf_specverify.drafting.batch import DraftBatch
from hf_specverify.drafting.tree import NULL, DraftTree
from hf_specverify.drafting.tree_batch import TreeBatch


def laws(*shape: int) -> torch.Tensor:
    return torch.softmax(torch.randn(*shape, generator=torch.Generator().manual_seed(0)), -1)


def ended(q: torch.Tensor) -> torch.Tensor:
    """Laws whose last row is zeros: the block simply ended."""
    return torch.cat([q[:-1], torch.zeros_like(q[-1:])])


def test_chain_keeps_tokens_and_laws() -> None:
    q = laws(4, 5)
    tree = DraftTree.chain(torch.tensor([2, 0, 4]), q)
    assert tree.num_nodes == 3
    assert tree.is_chain
    assert tree.parents.tolist() == [-1, 0, 1]
    assert tree.depths.tolist() == [1, 2, 3]
    assert tree.paths.tolist() == [[0, 1, 2]]
    assert torch.equal(tree.q, q)
    assert [tree.draws(node) for node in (-1, 0, 1, 2)] == [[0], [1], [2], [NULL]]


def test_chain_that_simply_ended_has_no_law_behind_it() -> None:
    q = ended(laws(3, 5))
    tree = DraftTree.chain(torch.tensor([2, 0]), q)
    assert tree.law(1) is None
    assert tree.draws(1) == []
    assert torch.equal(tree.q, q)
    law = tree.law(0)
    assert law is not None
    assert torch.equal(law, q[1])


def test_chain_without_tokens_has_one_row_of_q() -> None:
    tree = DraftTree.chain(torch.zeros(0, dtype=torch.long), torch.tensor([[0.25, 0.0]]))
    assert (tree.num_nodes, tree.is_chain, tree.depths.tolist()) == (0, True, [])
    assert tree.draws(-1) == [NULL]


def test_tree_of_two_branches_is_no_chain() -> None:
    #  root -> 0 -> 2 -> 4, root -> 1, 0 -> 3
    tree = DraftTree.from_parents(torch.tensor([5, 6, 7, 8, 9]), torch.tensor([-1, -1, 0, 0, 2]), ended(laws(6, 10)))
    assert not tree.is_chain
    assert tree.depths.tolist() == [1, 1, 2, 2, 3]
    assert tree.paths.tolist() == [[0, 2, 4], [0, 3, -1], [1, -1, -1]]
    assert tree.children(-1) == [0, 1]
    assert tree.children(0) == [2, 3]
    assert tree.children(1) == [NULL]


def test_deterministic_tree_has_no_laws_and_no_null_tokens() -> None:
    tree = DraftTree.from_parents(torch.tensor([5, 6, 5]), torch.tensor([-1, -1, 1]), None)
    assert [tree.children(node) for node in (-1, 0, 1, 2)] == [[0, 1], [], [2], []]
    assert tree.law(-1) is None
    with pytest.raises(ValueError, match="a deterministic tree has no laws"):
        _ = tree.q


def paths_of(walks: list[list[int]], size: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and laws of walks of up to 2 tokens; the law after a context is one row of a table."""
    table, cut = laws(1 + size, size), torch.tensor([1.0, 1.0, 0.0, 1.0])
    q = torch.zeros(len(walks), 3, size)
    for row, walk in enumerate(walks):
        for end in range(min(len(walk) + 1, 2)):
            q[row, end] = table[walk[end - 1] if end else size] * cut
    return torch.tensor([walk + [-1] * (2 - len(walk)) for walk in walks]), q


def test_paths_with_equal_prefixes_share_nodes() -> None:
    tokens, q = paths_of([[1, 3], [0, 3], [1, 0], [1, 3], [1], []])
    tree = DraftTree.from_paths(tokens, q)
    assert tree.tokens.tolist() == [1, 3, 0, 3, 0]
    assert tree.parents.tolist() == [-1, 0, -1, 2, 0]
    assert tree.paths.tolist() == [[0, 1], [2, 3], [0, 4], [0, 1], [0, -1], [-1, -1]]
    assert tree.draws(-1) == [0, 2, 0, 0, 0, NULL]
    assert tree.draws(0) == [1, 4, 1, NULL]
    assert tree.children(0) == [1, 4, NULL]
    assert tree.draws(1) == []
    for node, (row, place) in {-1: (0, 0), 0: (0, 1), 2: (1, 1)}.items():
        law = tree.law(node)
        assert law is not None
        assert torch.equal(law, q[row, place])
    assert tree.law(1) is None


def test_paths_refuse_different_laws_for_one_prefix() -> None:
    tokens, q = paths_of([[1, 3], [1, 0]])
    q[1, 1] = q[1, 1].flip(0)
    with pytest.raises(ValueError, match=r"q must be the same for equal prefixes, but path 1 differs after \[1\]"):
        DraftTree.from_paths(tokens, q)
    with pytest.raises(ValueError, match=re.escape("tokens must have the shape (K, L)")):
        DraftTree.from_paths(tokens[0], q[0])
    with pytest.raises(ValueError, match=re.escape("q must have the shape (2, 3, V)")):
        DraftTree.from_paths(tokens, q[:, :2])


def test_parents_refuse_what_is_no_tree() -> None:
    tokens = torch.tensor([0, 1])
    for parents in ([0, -1], [-1, 1], [-2, -1], [-1]):
        with pytest.raises(ValueError, match="parents must be 2 indices of earlier nodes or -1"):
            DraftTree.from_parents(tokens, torch.tensor(parents), None)
    with pytest.raises(ValueError, match="tokens must differ between siblings"):
        DraftTree.from_parents(torch.tensor([1, 1]), torch.tensor([-1, -1]), None)


@pytest.mark.parametrize(
    ("tokens", "q", "message"),
    [
        (torch.zeros(1, 2, dtype=torch.long), laws(3, 4), "tokens must have the shape (L,), got (1, 2)"),
        (torch.zeros(2), laws(3, 4), "tokens must be integers"),
        (torch.tensor([0, 4]), laws(3, 4), "tokens must lie in 0 … 3"),
        (torch.tensor([-1, 0]), laws(3, 4), "tokens must lie in 0 … 3"),
        (torch.tensor([0, 1]), laws(2, 4), "q must have the shape (3, V)"),
        (torch.tensor([0, 1]), laws(3, 4, 2), "q must have the shape (3, V)"),
        (torch.tensor([0]), torch.ones(2, 4, dtype=torch.long), "q must be floating point"),
        (torch.tensor([0]), torch.tensor([[0.5, 0.6], [0, 0]]), "q must be finite and non-negative"),
        (torch.tensor([0]), torch.tensor([[1.5, -0.5], [0, 0]]), "q must be finite and non-negative"),
        (torch.tensor([0]), torch.tensor([[float("nan"), 0.5], [0, 0]]), "q must be finite and non-negative"),
        (torch.tensor([0]), torch.tensor([[float("inf"), 0.5], [0, 0]]), "q must be finite and non-negative"),
    ],
)
def test_chain_refuses(tokens: torch.Tensor, q: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        DraftTree.chain(tokens, q)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_chain_allows_the_rounding_of_its_dtype(dtype: torch.dtype) -> None:
    DraftTree.chain(torch.tensor([1, 2]), laws(3, 2000).to(dtype))


def test_batch_refuses_shapes_that_disagree() -> None:
    tokens = torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="tokens must have the shape"):
        DraftBatch(tokens[0], (3,), None)
    with pytest.raises(ValueError, match="lengths must be 2 numbers from 0 to 3"):
        DraftBatch(tokens, (3,), None)
    with pytest.raises(ValueError, match="lengths must be 2 numbers from 0 to 3"):
        DraftBatch(tokens, (3, 4), None)
    for shape in ((2, 2, 5), (3, 3, 5), (2, 3)):
        with pytest.raises(ValueError, match=re.escape(f"q must have the shape (2, 3, V) or more rows, got {shape}")):
            DraftBatch(tokens, (3, 3), laws(*shape))
    DraftBatch(tokens, (3, 3), laws(2, 4, 5))


def test_batch_refuses_cuts_without_a_law() -> None:
    tokens = torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="cut must have one flag for each of 2 rows that have a q"):
        DraftBatch(tokens, (1, 2), None, (True, False))
    with pytest.raises(ValueError, match="cut must have one flag for each of 2 rows that have a q"):
        DraftBatch(tokens, (1, 2), laws(2, 3, 5), (True,))
    with pytest.raises(ValueError, match="q must have a row for the cut after 3 tokens"):
        DraftBatch(tokens, (1, 3), laws(2, 3, 5), (False, True))


def test_batch_knows_which_positions_exist() -> None:
    batch = DraftBatch(torch.zeros(3, 2, dtype=torch.long), (0, 2, 1), laws(3, 3, 5), (True, False, True))
    assert batch.exists.tolist() == [[False, False], [True, True], [True, False]]
    assert batch.law_rows.tolist() == [1, 2, 2]
    part = batch.part(slice(1, 3))
    assert (part.lengths, part.cut, part.law_rows.tolist()) == ((2, 1), (False, True), [2, 2])


def test_row_becomes_a_tree() -> None:
    q = laws(2, 3, 5)
    batch = DraftBatch(torch.tensor([[1, 2, 0], [4, 3, 2]]), (2, 3), q)
    tree = batch.tree(0, 5)
    assert tree.tokens.tolist() == [1, 2]
    assert torch.equal(tree.q[:2], q[0, :2])
    assert tree.q[2].tolist() == [0] * 5
    with pytest.raises(ValueError, match="vocabulary_size must be the V of q, 5, got 6"):
        batch.tree(0, 6)
    cut = DraftBatch(batch.tokens, (2, 2), q, (True, False)).tree(0, 5)
    assert torch.equal(cut.q, q[0])
    assert cut.draws(1) == [NULL]


def test_row_of_a_deterministic_draft_has_no_laws() -> None:
    tree = DraftBatch(torch.tensor([[1, 2, 99]]), (2,), None).tree(0, 3)
    assert tree.laws is None
    assert tree.tokens.tolist() == [1, 2]
    with pytest.raises(ValueError, match="tokens must lie in 0 … 1"):
        DraftBatch(torch.tensor([[1, 2]]), (2,), None).tree(0, 2)


def test_shortening_shortens_rows_and_the_padding() -> None:
    q = laws(3, 3, 5)
    batch = DraftBatch(torch.tensor([[1, 2, 3], [4, 3, 2], [0, 0, 0]]), (3, 2, 0), q)
    shorter = batch.shortened([1, 2, 0])
    assert shorter.lengths == (1, 2, 0)
    assert torch.equal(shorter.tokens, batch.tokens[:, :2])
    assert shorter.q is not None
    assert torch.equal(shorter.q, q[:, :2])
    assert batch.shortened([0, 0, 0]).tokens.shape == (3, 0)
    for lengths in ([3, 3, 0], [3, 2], [-1, 2, 0]):
        with pytest.raises(ValueError, match=re.escape("lengths must be 3 numbers from 0 up to (3, 2, 0)")):
            batch.shortened(lengths)


def test_trees_of_a_batch_are_padded_and_come_back() -> None:
    table = laws(2, 5, 4)
    walks = [[[1, 3], [1, 0], [2]], [[0], [0], []]]
    rows = [[[4, 1], [4, 1], [4, 2]], [[4], [4], [4]]]
    batch = TreeBatch.from_walks(walks, table, rows)
    assert batch.lengths == (4, 1)
    assert batch.depths == (2, 1)
    assert batch.tokens.tolist() == [[1, 3, 0, 2], [0, 0, 0, 0]]
    assert batch.parents.tolist() == [[-1, 0, 0, -1], [-1, -1, -1, -1]]
    assert batch.paths.tolist() == [[[0, 1], [0, 2], [3, -1]], [[0, -1], [0, -1], [-1, -1]]]
    assert batch.levels.tolist()[0] == [1, 2, 2, 1]
    assert batch.ancestors[0].long().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1]]
    assert batch.exists.tolist() == [[True] * 4, [True, False, False, False]]
    tree = batch.tree(0, 4)
    assert tree.draws(3) == [NULL]
    assert torch.equal(tree.q[3], torch.zeros(4))
    assert torch.equal(tree.q[4], table[0, 2])
    assert batch.part(slice(1, 2)).tree(0, 4).draws(-1) == [0, 0, NULL]
    with pytest.raises(ValueError, match="vocabulary_size must be the V of laws, 4, got 5"):
        batch.tree(0, 5)


def test_trees_without_a_node() -> None:
    batch = TreeBatch.from_walks([[[], []], [[], []]], laws(2, 1, 4), [[[0], [0]], [[], []]])
    assert batch.tokens.shape == (2, 0)
    assert batch.paths.shape == (2, 2, 0)
    assert batch.lengths == (0, 0)
    assert [batch.tree(row, 4).draws(-1) for row in (0, 1)] == [[NULL, NULL], []]


def test_a_path_that_ends_where_another_goes_on_is_refused():
    """Whether a null token was drawn there would be open: the same prefix has one law, and here it has two."""
    q = torch.tensor([[[0.8, 0.2], [0.0, 0.0], [0.0, 0.0]], [[0.8, 0.2], [0.8, 0.2], [0.0, 0.0]]])
    with pytest.raises(ValueError, match=r"path 1 ends after|path 0 ends after|equal prefixes"):
        DraftTree.from_paths(torch.tensor([[0, -1], [0, 1]]), q)
