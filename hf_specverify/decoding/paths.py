"""From a tree back to a chain: what stands along the accepted path of each row."""

from __future__ import annotations

import torch
from torch import Tensor

from ..drafting.batch import DraftBatch
from ..drafting.tree_batch import TreeBatch
from ..verification.base import BatchVerdict
from .masks import TreeRegion
from .runner import ForwardOutput


def scoring_region(trees: TreeBatch) -> TreeRegion:
    """The root and all nodes as the target scores them: every node sees the root and the nodes above it."""
    rows, size = trees.tokens.shape
    visible = torch.zeros(rows, size + 1, size + 1, dtype=torch.bool, device=trees.tokens.device)
    visible[:, :, 0] = True
    visible[:, 1:, 1:] = trees.ancestors
    return TreeRegion(torch.nn.functional.pad(trees.levels, (1, 0)), visible)


def committed_tokens(drafts: DraftBatch | TreeBatch, verdict: BatchVerdict) -> Tensor:
    """(A, D + 1) tokens: the accepted drafts of each row, then the verifier's own token; what follows is filler."""
    chain = drafts.tokens if isinstance(drafts, DraftBatch) else drafts.tokens.gather(1, _path(verdict))
    tokens = torch.nn.functional.pad(chain, (0, 1))
    return tokens.scatter_(1, verdict.accepted[:, None], verdict.next_token[:, None])


def join(parts: list[BatchVerdict], depth: int) -> BatchVerdict:
    """The verdict on all rows from those on some, with (A, depth) paths where drafts are trees."""
    accepted = torch.cat([part.accepted for part in parts])
    next_token = torch.cat([part.next_token for part in parts])
    paths = [part.path for part in parts if part.path is not None]
    path = torch.cat([_to_width(part, depth) for part in paths]) if paths else None
    return BatchVerdict(accepted, next_token, path)


def _to_width(path: Tensor, depth: int) -> Tensor:
    return torch.nn.functional.pad(path, (0, max(0, depth - path.shape[1])))[:, :depth].clamp(min=0)


def positions(path: Tensor) -> Tensor:
    """(A, D + 1) the positions of the scored block along the path: the root, then the accepted nodes."""
    return torch.nn.functional.pad(path + 1, (1, 0))


def along(values: Tensor, path: Tensor) -> Tensor:
    """(A, D + 1, …) of the values (A, N + 1, …) of all positions."""
    return values[torch.arange(len(path), device=values.device)[:, None], positions(path).to(values.device)]


def follow(output: ForwardOutput, path: Tensor, lengths: list[int]) -> ForwardOutput:
    """What the forward gave along the path, as if the path had been scored as a chain behind `lengths` tokens."""
    hidden = output.hidden_states and tuple(along(layer, path) for layer in output.hidden_states)
    attentions = output.attentions and tuple(_attention(layer, path, lengths) for layer in output.attentions)
    return ForwardOutput(along(output.logits, path), hidden, attentions)


def _attention(layer: Tensor, path: Tensor, lengths: list[int]) -> Tensor:
    """(A, heads, D + 1, slots): rows along the path, and the columns of its nodes moved to where a chain has them."""
    device = layer.device
    path, begin = path.to(device), torch.tensor(lengths, device=device)[:, None]
    rows = along(layer.transpose(1, 2), path).transpose(1, 2)
    targets = begin + torch.arange(path.shape[1], device=device)
    columns = torch.arange(layer.shape[-1], device=device).repeat(len(path), 1).scatter_(1, targets, begin + path)
    return torch.take_along_dim(rows, columns[:, None, None], dim=-1)


def _path(verdict: BatchVerdict) -> Tensor:
    assert verdict.path is not None
    return verdict.path
