"""Cuts of trees: which nodes are chosen, what is left of a tree, and that the output keeps its law, by enumeration."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from test_schedules import costs, table
from torch import Tensor

from hf_specverify.drafting.pruning import pruned
from hf_specverify.drafting.tree_batch import TreeBatch
from hf_specverify.scheduling import tree_schedule
from hf_specverify.scheduling.call_costs import CallCosts
from hf_specverify.scheduling.online import OnlineCalibration
from hf_specverify.scheduling.schedule import StepOutcome
from hf_specverify.scheduling.tree_cut import chosen_nodes, reach_probabilities
from hf_specverify.scheduling.tree_schedule import TreeSchedule
from hf_specverify.testing import contexts, enumerate_outcomes
from hf_specverify.verification import get_verifier

EXACT = ["traversal", "multi_round_without_replacement", "naive"]
SIZE, TOKENS, NODES = 2, 4, 5


def toy_laws(seed: int, size: int = SIZE, length: int = TOKENS) -> dict[tuple[int, ...], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights = {
        x: torch.rand(size, generator=generator, dtype=torch.float64) ** 2 + 0.05 for x in contexts(length, size)
    }
    return {context: law / law.sum() for context, law in weights.items()}


def grow(q, text, levels, nodes=NODES):
    """The likeliest nodes of all, as paths behind a text: a child is no likelier than its parent."""
    chances = {(): 1.0}
    for path in contexts(levels, len(q[()])):
        if path:
            chances[path] = chances[path[:-1]] * float(q[text + path[:-1]][path[-1]])
    best = sorted((path for path in chances if path), key=lambda path: -chances[path])[:nodes]
    return [list(path) for path in sorted(best)]  # so that what is cut stands between what is kept


def batch_of(rows, laws, texts):
    """The trees of some rows, q given as a signal."""
    most = max(1, *map(len, rows))
    walks = [row + [[]] * (most - len(row)) for row in rows]
    trees = TreeBatch.from_walks(walks, None, [[[] for _ in row] for row in walks])
    q = torch.zeros(trees.tokens.shape)
    for row, (law, text) in enumerate(zip(laws, texts, strict=True)):
        for node, path in enumerate(seen_by(trees, row)):
            q[row, node] = law[text + path[:-1]][path[-1]]
    return replace(trees, signals={"q": q})


def seen_by(trees, row):
    """The path to every node of a row, as the target's mask shows it."""
    above = trees.ancestors[row, : trees.lengths[row], : trees.lengths[row]]
    return [tuple(trees.tokens[row, : trees.lengths[row]][mask].tolist()) for mask in above]


class Walk:
    """Every way in which two rows can get their tokens, under one schedule that learns from both."""

    def __init__(self, verifier: str, schedule: TreeSchedule) -> None:
        self.verifier, self.schedule = get_verifier(verifier), schedule
        self.p, self.q = [toy_laws(1), toy_laws(2)], [toy_laws(3), toy_laws(4)]
        self.joint = torch.zeros([SIZE] * (2 * TOKENS), dtype=torch.float64)
        self.cuts: dict[tuple[int, tuple[int, ...]], set[int]] = {}

    def run(self, texts=((), ()), chance=1.0, schedule=None):
        schedule = schedule or copy.deepcopy(self.schedule)
        active = [row for row in range(2) if len(texts[row]) < TOKENS]
        if not active:
            self.joint[texts[0] + texts[1]] += chance
            return
        drafts = self.proposed(schedule, active, texts)
        laws = [self.decisions(drafts, place, row, texts[row]) for place, row in enumerate(active)]
        for decisions in itertools.product(*(law.items() for law in laws)):
            further, probability = list(texts), chance
            for row, ((path, token), part) in zip(active, decisions, strict=True):
                accepted = drafts.tokens[active.index(row)][list(path)].tolist()
                further[row], probability = texts[row] + (*accepted, token), probability * part
            after = copy.deepcopy(schedule)
            after.learn(self.outcome(drafts, active, texts, [path for (path, _), _ in decisions]))
            self.run(tuple(further), probability, after)

    def proposed(self, schedule, active, texts):
        lengths = [5 + len(texts[row]) for row in active]
        state = SimpleNamespace(rows=active, lengths=lengths, prompt_length=5)
        levels = schedule.draft_lengths([TOKENS - 1 - len(texts[row]) for row in active], state)
        rows = [grow(self.q[row], texts[row], level) for row, level in zip(active, levels, strict=True)]
        trees = batch_of(rows, [self.q[row] for row in active], [texts[row] for row in active])
        drafts = schedule.choose(trees, state)
        for place, row in enumerate(active):
            self.cuts.setdefault((row, texts[row]), set()).add(drafts.lengths[place])
        return drafts

    def target(self, drafts, place, row, text):
        return torch.stack([self.p[row][text + path] for path in [(), *seen_by(drafts, place)]])

    def decisions(self, drafts, place, row, text):
        tree, p = drafts.tree(place, SIZE), self.target(drafts, place, row, text)
        law: dict[tuple[tuple[int, ...], int], float] = {}
        for chance, verdict in enumerate_outcomes(lambda draws: self.verifier.verify(tree, p, draws)):
            decision = tuple(verdict.path.tolist()), int(verdict.next_token)
            law[decision] = law.get(decision, 0.0) + chance
        return law

    def outcome(self, drafts, active, texts, paths):
        acceptance = torch.zeros(drafts.tokens.shape)
        for place, row in enumerate(active):
            for node, path in enumerate(seen_by(drafts, place)):
                acceptance[place, node] = self.p[row][texts[row] + path[:-1]][path[-1]]
        width = max(drafts.depths)
        path = torch.tensor([[*path, *[0] * (width - len(path))] for path in paths]).long().reshape(len(paths), width)
        return StepOutcome(active, drafts, acceptance, [len(path) for path in paths], 0.0, path)

    def error(self):
        singles = []
        for law in self.p:
            row = torch.ones([SIZE] * TOKENS, dtype=torch.float64)
            for answer in itertools.product(range(SIZE), repeat=TOKENS):
                for end in range(TOKENS):
                    row[answer] *= law[answer[:end]][answer[end]]
            singles.append(row.flatten())
        return float((self.joint.flatten() - torch.outer(*singles).flatten()).abs().max())


def toy_schedule():
    prices = CallCosts(costs(0.3), NODES)
    online = OnlineCalibration(table("q"), warm_up=0)
    return TreeSchedule(2, 2, online.table, prices, online)


@pytest.mark.parametrize("verifier", EXACT)
def test_two_rows_are_jointly_lossless(verifier, monkeypatch):
    """One cut for both rows, by a calibration and weights that follow both: the joint law is the targets' product."""
    monkeypatch.setattr("hf_specverify.scheduling.online.EVERY", 1)
    walk = Walk(verifier, toy_schedule())
    walk.run()
    assert walk.error() < 1e-12
    assert any(len(sizes) > 1 for sizes in walk.cuts.values()), "a row's cut must depend on the other row"
    assert {0, 1, 2} <= set().union(*walk.cuts.values())


def test_the_enumeration_would_see_a_tree_that_is_put_together_wrongly(monkeypatch):
    """Nodes that don't see what stands above them."""

    def careless(trees, kept):
        found = pruned(trees, kept)
        alone = torch.eye(found.tokens.shape[1], dtype=torch.bool)
        return replace(found, ancestors=alone.expand_as(found.ancestors))

    monkeypatch.setattr(tree_schedule, "pruned", careless)
    walk = Walk("naive", toy_schedule())
    walk.run()
    assert walk.error() > 1e-3


def random_batch(seed, rows=4, size=3, levels=3, nodes=9):
    laws = [toy_laws(seed * rows + row, size, levels) for row in range(rows)]
    return batch_of([grow(law, (), levels - row % 2, nodes - row) for row, law in enumerate(laws)], laws, [()] * rows)


@pytest.mark.parametrize("verifier", EXACT)
def test_reach_is_what_verifiers_accept(verifier):
    """Whatever verifier decides, and in whatever order: Σ reach is the expected number of accepted tokens."""
    trees, p = random_batch(3), toy_laws(17, 3)
    for row, size in enumerate(trees.lengths):
        paths = seen_by(trees, row)
        laws = torch.stack([p[path] for path in [(), *paths]])
        predicted = torch.stack([p[path[:-1]][path[-1]] for path in paths])[None]
        reach = reach_probabilities(predicted, trees.parents[row : row + 1, :size], torch.ones(1, size).bool(), 3)
        tree, rule = trees.tree(row, 3), get_verifier(verifier)
        accepted = torch.zeros(size, dtype=torch.float64)
        for chance, verdict in enumerate_outcomes(lambda draws, t=tree, p=laws: rule.verify(t, p, draws)):
            accepted[verdict.path] += chance
        assert torch.allclose(accepted, reach[0], atol=1e-12)


def test_siblings_share_what_there_is():
    parents = torch.tensor([[-1, -1, 0, 0, -1]])
    exists = torch.tensor([[True, True, True, True, False]])
    reach = reach_probabilities(torch.tensor([[0.9, 0.6, 0.5, 0.25, 0.9]]), parents, exists, 2)
    assert torch.allclose(reach, torch.tensor([[0.6, 0.4, 0.3, 0.15, 0]], dtype=torch.float64))


def chosen_by_hand(reach, trees, latency, weights):
    """Node by node: of those whose parent is chosen, the one that is worth most, while goodput rises."""
    chosen: set[tuple[int, int]] = set()
    expected = float(len(reach))
    while True:
        free = [
            (float(weights[row] * reach[row, node]), row, node)
            for row, size in enumerate(trees.lengths)
            for node in range(size)
            if (row, node) not in chosen
            and (trees.parents[row, node] < 0 or (row, int(trees.parents[row, node])) in chosen)
        ]
        if not free:
            return chosen
        value, row, node = max(free, key=lambda entry: entry[0])
        if (expected + value) / latency[len(chosen) + 1] <= expected / latency[len(chosen)]:
            return chosen
        chosen.add((row, node))
        expected += value


@pytest.mark.parametrize("seed", range(6))
def test_nodes_are_chosen_across_rows_while_goodput_rises(seed):
    trees = random_batch(seed)
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(4, generator=generator, dtype=torch.float64) + 0.5
    weights = 4 * weights / weights.sum()
    latency = 2 + torch.cumsum(0.05 + 0.15 * torch.rand(37, generator=generator, dtype=torch.float64), 0)
    predicted = torch.rand(trees.tokens.shape, generator=generator).sqrt()
    reach = reach_probabilities(predicted, trees.parents, trees.exists, 3)
    chosen = chosen_nodes(reach, trees.exists, latency, weights)
    assert {tuple(place) for place in chosen.nonzero().tolist()} == chosen_by_hand(reach, trees, latency, weights)
    assert 0 < int(chosen.sum()) < sum(trees.lengths)
    free, dear = torch.ones(37), 1 + torch.arange(37.0) * 9
    assert torch.equal(chosen_nodes(reach, trees.exists, free), trees.exists & (reach > 0))
    assert not chosen_nodes(reach, trees.exists, dear).any()


@pytest.mark.parametrize("seed", range(4))
def test_what_is_left_of_a_tree(seed):
    trees = random_batch(seed)
    reach = reach_probabilities(trees.signals["q"], trees.parents, trees.exists, 3)
    chosen = reach > torch.tensor([0.2, 0.05, 2.0, 0.0])[:, None]
    left = pruned(trees, chosen)
    assert left.lengths == tuple(chosen.sum(1).tolist())
    assert left.lengths[2] == left.depths[2] == 0
    for row in range(4):
        kept = [path for path, flag in zip(seen_by(trees, row), chosen[row].tolist(), strict=False) if flag]
        assert seen_by(left, row) == kept
        tree = left.tree(row, 3)
        assert tree.depths.tolist() == [len(path) for path in kept] == left.levels[row, : len(kept)].tolist()
        assert left.depths[row] == max(map(len, kept), default=0)
        walked = {tuple(tree.tokens[[n for n in walk if n >= 0]].tolist()) for walk in tree.paths.tolist()} - {()}
        inner = {path[:-1] for path in kept}
        assert {path for path in kept if path not in inner} <= walked <= set(kept)
        assert torch.equal(left.signals["q"][row, : len(kept)], trees.signals["q"][row][chosen[row]])
    nothing = pruned(trees, torch.zeros_like(chosen))
    assert nothing.lengths == nothing.depths == (0,) * 4 and nothing.tokens.shape == (4, 0)
    assert pruned(nothing, torch.zeros(4, 0).bool()).lengths == (0,) * 4


def test_what_is_refused():
    trees = random_batch(0)
    orphan = torch.zeros_like(trees.exists)
    orphan[0, int((trees.parents[0] >= 0).nonzero()[0])] = True
    with pytest.raises(ValueError, match="parent"):
        pruned(trees, orphan)
    with pytest.raises(ValueError, match="shape"):
        pruned(trees, orphan[:, 1:])
    with pytest.raises(ValueError, match="deterministic"):
        pruned(replace(trees, laws=torch.zeros(4, 1, 3)), trees.exists)
