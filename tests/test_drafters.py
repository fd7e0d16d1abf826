"""Drafters other than a model: prompt lookup, the host's and a user's candidate generators."""

import numpy as np
import pytest
import tiny
import torch
from transformers.generation.candidate_generator import CandidateGenerator, PromptLookupCandidateGenerator

import hf_specverify as sv
from hf_specverify.drafting.prompt_lookup import lookup


@pytest.mark.parametrize("size", [1, 2, 4])
def test_lookup_finds_what_the_host_finds(size):
    generator = torch.Generator().manual_seed(size)
    for _ in range(200):
        length = int(torch.randint(2, 30, (1,), generator=generator))
        ids = torch.randint(0, 4, (1, length), generator=generator)
        host = PromptLookupCandidateGenerator(num_output_tokens=5, max_matching_ngram_size=size, max_length=1000)
        theirs = host.get_candidates(ids)[0][0, length:].tolist()
        assert lookup(ids[0].numpy(), size, 5).tokens.tolist() == theirs


def test_lookup_edges():
    assert lookup(np.array([7]), 3, 5).tokens.tolist() == []
    assert lookup(np.array([7, 7]), 3, 5).tokens.tolist() == [7]
    assert lookup(np.array([1, 2, 3, 1, 2]), 2, 2).tokens.tolist() == [3, 1]
    assert lookup(np.array([1, 2, 3, 1, 2]), 2, 0).tokens.tolist() == []
    match = lookup(np.array([1, 2, 3, 1, 2, 4, 1, 2]), 3, 5)
    assert (match.tokens.tolist(), match.length, match.count) == ([3, 1, 2, 4, 1], 2, 2)
    with pytest.raises(ValueError, match="max_matching_ngram_size=0"):
        sv.PromptLookup(0)


class Oracle(CandidateGenerator):
    """Knows each row's answer and proposes it with one mistake; counts what it is told."""

    def __init__(self, answers, law=None):
        self.answers, self.law, self.told, self.rounds = answers, law, [], 0

    def get_candidates(self, input_ids, **kwargs):
        self.rounds += 1
        text = input_ids[0].tolist()
        answer = next(row for row in self.answers if row[: len(text)] == text)
        ahead = answer[len(text) : len(text) + 3]
        if self.rounds % 2 and ahead:
            ahead[-1] = 3 + (ahead[-1] + 1) % 60
        return torch.tensor([text + ahead]), None

    def update_candidate_strategy(self, input_ids, scores, num_matches):
        self.told.append((input_ids.shape[1], num_matches))


@pytest.mark.parametrize("batch", [1, 3])
def test_a_candidate_generator_of_the_users(batch):
    target = tiny.make_model()
    inputs = tiny.prompts(batch)
    arguments = {"max_new_tokens": 20, "do_sample": False, "return_dict_in_generate": True}
    plain = target.generate(**inputs, **arguments)
    answers = [
        row[int((mask == 0).sum()) :]
        for row, mask in zip(plain.sequences.tolist(), inputs["attention_mask"], strict=True)
    ]
    oracle = Oracle(answers)
    with sv.enabled(target):
        ours = target.generate(**inputs, assistant_model=oracle, **arguments)
    assert torch.equal(plain.sequences, ours.sequences)
    assert ours.speculation.drafter == "Oracle"
    assert 0.5 < ours.speculation.acceptance_rate < 1
    if batch == 1:
        lengths = [
            9 + sum(step.committed[0] for step in ours.speculation.steps[: i + 1]) for i in range(len(oracle.told))
        ]
        assert oracle.told == list(zip(lengths, [step.accepted[0] for step in ours.speculation.steps], strict=True))
    else:
        assert oracle.rounds == 0, "in a batch each row has a copy"


def test_the_hosts_prompt_lookup_object_works():
    target = tiny.make_model()
    inputs = tiny.prompts(1)
    plain = target.generate(**inputs, max_new_tokens=20, do_sample=False)
    with sv.enabled(target):
        host = PromptLookupCandidateGenerator(num_output_tokens=4, max_matching_ngram_size=2, max_length=1000)
        assert torch.equal(plain, target.generate(**inputs, max_new_tokens=20, do_sample=False, assistant_model=host))


class Wrong(CandidateGenerator):
    def get_candidates(self, input_ids, **kwargs):
        return torch.cat([input_ids, torch.tensor([[64]])], dim=1), None


class NeedsOutputs(CandidateGenerator):
    requires_model_outputs = True


def test_generators_that_do_not_fit_are_refused():
    target = tiny.make_model()
    inputs = tiny.prompts(1)
    with sv.enabled(target):
        with pytest.raises(ValueError, match=r"Wrong proposed the id 64.*0 to 63"):
            target.generate(**inputs, assistant_model=Wrong(), max_new_tokens=5)
        with pytest.raises(ValueError, match="NeedsOutputs reads the target's outputs"):
            target.generate(**inputs, assistant_model=NeedsOutputs(), max_new_tokens=5)


def test_rows_near_their_end_draft_less():
    target = tiny.make_model()
    with sv.enabled(target):
        out = target.generate(
            **tiny.prompts(2),
            assistant_model=target,
            num_draft_tokens=6,
            max_new_tokens=10,
            do_sample=False,
            return_dict_in_generate=True,
        )
    assert [step.drafted for step in out.speculation.steps] == [(6, 6), (2, 2)]
    assert [step.committed for step in out.speculation.steps] == [(7, 7), (3, 3)]
