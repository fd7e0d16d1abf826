from __future__ import annotations

import re

import pytest
import torch

from hf_specverify.drafting.tree import DraftBatch, DraftTree


def laws(*shape: int) -> torch.Tensor:
    return torch.softmax(torch.randn(*shape, generator=torch.Generator().manual_seed(0)), -1)


def test_chain_keeps_tokens_and_laws() -> None:
    q = laws(4, 5)
    tree = DraftTree.chain(torch.tensor([2, 0, 4]), q)
    assert tree.num_nodes == 3
    assert tree.is_chain
    assert tree.parents.tolist() == [-1, 0, 1]
    assert tree.depths.tolist() == [1, 2, 3]
    assert torch.equal(tree.q, q)


def test_chain_without_tokens_has_one_row_of_q() -> None:
    tree = DraftTree.chain(torch.zeros(0, dtype=torch.long), torch.tensor([[0.25, 0.0]]))
    assert (tree.num_nodes, tree.is_chain, tree.depths.tolist()) == (0, True, [])


def test_tree_of_two_branches_is_no_chain() -> None:
    #  root -> 0 -> 2 -> 4, root -> 1, 0 -> 3
    tree = DraftTree(torch.tensor([5, 6, 7, 8, 9]), torch.tensor([-1, -1, 0, 0, 2]), laws(6, 10))
    assert not tree.is_chain
    assert tree.depths.tolist() == [1, 1, 2, 2, 3]


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
    with pytest.raises(ValueError, match=re.escape("q must have the shape (2, 3, V), got (2, 4, 5)")):
        DraftBatch(tokens, (3, 3), laws(2, 4, 5))


def test_batch_knows_which_positions_exist() -> None:
    batch = DraftBatch(torch.zeros(3, 2, dtype=torch.long), (0, 2, 1), None)
    assert batch.exists.tolist() == [[False, False], [True, True], [True, False]]


def test_row_becomes_a_tree_with_a_last_row_of_zeros() -> None:
    q = laws(2, 3, 5)
    batch = DraftBatch(torch.tensor([[1, 2, 0], [4, 3, 2]]), (2, 3), q)
    tree = batch.tree(0, 5)
    assert tree.tokens.tolist() == [1, 2]
    assert torch.equal(tree.q[:2], q[0, :2])
    assert tree.q[2].tolist() == [0] * 5
    with pytest.raises(ValueError, match="vocabulary_size must be the V of q, 5, got 6"):
        batch.tree(0, 6)


def test_row_of_a_deterministic_draft_gets_one_hot_laws() -> None:
    tree = DraftBatch(torch.tensor([[1, 2, 99]]), (2,), None).tree(0, 3)
    assert tree.q.tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0]]
    with pytest.raises(ValueError, match="tokens must lie in 0 … 1"):
        DraftBatch(torch.tensor([[1, 2]]), (2,), None).tree(0, 2)


def test_cut_shortens_rows_and_the_padding() -> None:
    q = laws(3, 3, 5)
    batch = DraftBatch(torch.tensor([[1, 2, 3], [4, 3, 2], [0, 0, 0]]), (3, 2, 0), q)
    shorter = batch.cut([1, 2, 0])
    assert shorter.lengths == (1, 2, 0)
    assert torch.equal(shorter.tokens, batch.tokens[:, :2])
    assert shorter.q is not None
    assert torch.equal(shorter.q, q[:, :2])
    assert batch.cut([0, 0, 0]).tokens.shape == (3, 0)
    for lengths in ([3, 3, 0], [3, 2], [-1, 2, 0]):
        with pytest.raises(ValueError, match=re.escape("lengths must be 3 numbers from 0 up to (3, 2, 0)")):
            batch.cut(lengths)
