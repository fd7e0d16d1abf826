"""`sv.diagnose` on tiny models: four ways of generating, a table, reports, and going on where it ended."""

import json
from dataclasses import replace

import pytest
import tiny
import torch
from tokenizing import byte_tokenizer

import hf_specverify as sv
from hf_specverify.diagnostics import num_calls
from hf_specverify.diagnostics.arms import Comparison
from hf_specverify.diagnostics.tasks import MathAnswer, Summary

pytestmark = pytest.mark.filterwarnings("ignore:.*is lossy")
ARMS = ["target", "matched", "lossless", "rule"]


@pytest.fixture(scope="module")
def models():
    target = tiny.make_model(vocabulary=259)
    return target, tiny.near_copy(target, 0.05)


def run(models, prompts=("one", "two words", "three"), **options):
    arguments = {"tokenizer": byte_tokenizer(), "batch_size": 2, "max_new_tokens": 24, "top_k": 0, **options}
    return sv.diagnose(*models, list(prompts), **arguments)


@pytest.fixture(scope="module")
def found(models):
    return run(models, repeats=2, tasks=[MathAnswer("3"), None, Summary("a b")], metadata={"note": "small"})


def test_every_way_answers_every_prompt(found):
    assert found.arms == ARMS
    for arm in ARMS:
        sequences = found.sequences(arm)
        assert sorted(sequence.prompt for sequence in sequences) == [0, 0, 1, 1, 2, 2]
        assert all(1 <= s.tokens <= 24 and s.text is not None and s.seconds > 0 for s in sequences)
        assert all((s.ending == "eos") == (s.tokens < 24) or s.tokens == 24 for s in sequences)
    assert len(found.samples.runs) == num_calls(2, 2) == 16


def test_plain_ways_take_one_pass_a_token_and_speculation_fewer(found):
    for arm in ("target", "matched"):
        assert found.table[arm]["block_efficiency"].value == 1
        assert found.table[arm]["acceptance"].value is None
        assert all(sequence.positions is None for sequence in found.sequences(arm))
    for arm in ("lossless", "rule"):
        assert found.table[arm]["block_efficiency"].value > 1
        assert 0 < found.table[arm]["acceptance"].value < 1


def test_the_table_adds_the_sequences_up(found):
    rule, row = found.sequences("rule"), found.table["rule"]
    tokens = sum(s.tokens for s in rule)
    assert row["length"].value == pytest.approx(tokens / 6)
    assert row["tokens_per_second"].value == pytest.approx(tokens / sum(s.seconds for s in rule))
    nll = -sum(s.log_likelihood for s in rule) / tokens
    assert row["perplexity"].value == pytest.approx(float(torch.tensor(nll).exp()), rel=1e-4)
    assert sum(row[f"ended_by_{kind}"].value for kind in ("eos", "limit", "loop", "stop")) == pytest.approx(1)
    assert row["perplexity"].low <= row["perplexity"].value <= row["perplexity"].high
    difference = found.comparisons["target"]["length"]
    assert difference.value == pytest.approx(row["length"].value - found.table["target"]["length"].value)
    ratio = found.comparisons["target"]["tokens_per_second"]
    assert ratio.value == pytest.approx(
        row["tokens_per_second"].value / found.table["target"]["tokens_per_second"].value
    )


def test_tasks_are_scored_by_prompt(found):
    assert found.settings["tasks"] == ["gsm8k", "rouge_l"]
    assert {(s.prompt, s.task) for s in found.sequences("rule")} == {(0, "gsm8k"), (1, None), (2, "rouge_l")}
    assert found.table["rule"]["score_gsm8k"].value in (0, 0.5, 1)


def test_each_way_is_what_it_is_called(models):
    """λ = 0 accepts all drafts, lossless speculation does not; min-p with a base of 1 leaves the best token only."""
    found = run(models, rule="collaborative", options={"weight": 0.0}, matched=False)
    assert found.table["rule"]["acceptance"].value == 1 > found.table["lossless"]["acceptance"].value
    found = run(models, ["one"], rule="min_p", options={"p_base": 1.0})
    ids = torch.tensor([byte_tokenizer()("one")["input_ids"]])
    greedy = models[0].generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24)
    text = byte_tokenizer().decode(greedy[0, ids.shape[1] :], skip_special_tokens=True)
    assert [sequence.text for sequence in found.sequences("matched")] == [text]
    assert [sequence.text for sequence in found.sequences("target")] != [text]


class Vowels:
    """A task of one's own."""

    name = "vowels"

    def score(self, text):
        return sum(letter in "aeiou" for letter in text) / max(len(text), 1)


class Always:
    name = "always"

    def score(self, text):
        return 1.0


def test_a_task_sees_the_text_of_its_own_prompt(models):
    found = run(models, tasks=[Vowels(), Always(), None])
    first, *_ = (sequence for sequence in found.sequences("rule") if sequence.prompt == 0)
    assert first.score == Vowels().score(first.text)
    assert found.table["rule"]["score_vowels"].value == first.score < 1
    assert found.table["rule"]["score_always"].value == 1


def test_rows_share_the_seconds_of_their_call(models, monkeypatch):
    generate = Comparison.generate
    monkeypatch.setattr(Comparison, "generate", lambda *given: replace(generate(*given), seconds=6.0))
    found = run(models, matched=False)
    assert [sequence.seconds for sequence in found.sequences("target")] == [3.0, 3.0, 6.0]


def test_laws_have_their_sum_and_their_entropy(found):
    assert set(found.laws) == {
        "tv", "kl_target_law", "kl_law_target", "overshoot", "max_ratio", "tv_matched", "kl_matched_law",
        "kl_law_matched",
    }  # fmt: skip
    assert found.laws["tv"].drafted.value == pytest.approx(found.laws["overshoot"].drafted.value, rel=1e-3)
    assert found.laws["tv"].drafted.value > found.laws["tv"].all.value > 0
    assert found.laws["max_ratio"].largest <= 2.001  # lenience of 0.5
    drafted = sum(sum(s.positions["drafted"]) for s in found.sequences("rule"))
    assert sum(part.positions for part in found.by_entropy) == drafted


def test_a_rule_that_is_lossless_shifts_nothing(models):
    found = run(models, rule="collaborative", options={"weight": 1.0}, matched=False)
    assert found.arms == ["target", "lossless", "rule"]
    assert "matched" not in found.table
    assert found.laws["tv"].largest < 1e-5
    assert found.laws["kl_law_target"].infinite == 0


def test_infinite_divergences_are_counted_apart(models):
    """The draft's own top-k lets tokens in that the target's leaves out."""
    found = run(models, rule="collaborative", options={"weight": 0.5}, matched=False, top_k=3)
    assert 0 < found.laws["kl_law_target"].infinite < 1
    assert found.laws["max_ratio"].largest is None
    assert "∞" in found.markdown()
    json.dumps(found.to_dict(), allow_nan=False)


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("after", [1, 5])
def test_it_goes_on_where_it_ended(models, tmp_path, after):
    file = tmp_path / "samples.json"

    def stop(samples):
        samples.save(file)
        if len(samples.runs) == after:
            raise Interrupted

    with pytest.raises(Interrupted):
        run(models, on_batch=stop)
    seen = []
    samples = sv.DiagnosisSamples.load(file)
    again = run(models, samples=samples, on_batch=lambda s: seen.append(len(s.runs)))
    assert seen == list(range(after + 1, 9))
    whole = run(models)

    def untimed(diagnosis):
        runs = diagnosis.samples.runs
        return [replace(run, sequences=[replace(s, seconds=0.0) for s in run.sequences]) for run in runs]

    assert untimed(again) == untimed(whole)
    assert run(models, samples=samples, on_batch=lambda s: pytest.fail("made again")).table == again.table


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"options": {"leniency": 0.3}}, "rule"),
        ({"prompts": ["other", "two words", "three"]}, "prompts"),
        ({"temperature": 0.5}, "options"),
        ({"tasks": [MathAnswer("3"), None, None]}, "answers"),
        ({"matched": False}, "arms"),
        ({"seed": 1}, "seed"),
    ],
)
def test_it_does_not_go_on_from_another_run(models, change, name):
    samples = sv.DiagnosisSamples()
    run(models, samples=samples)
    with pytest.raises(ValueError, match=f"samples were made with {name}="):
        run(models, samples=samples, **change)


def test_draws_leave_the_global_generator_alone(models):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    run(models, ["one"], max_new_tokens=4)
    assert torch.equal(torch.get_rng_state(), before)


def test_everything_survives_a_file(found, tmp_path):
    found.save(tmp_path)
    again = sv.Diagnosis.load(tmp_path / "diagnosis.json")
    assert again.to_dict() == found.to_dict() == json.loads((tmp_path / "diagnosis.json").read_text())
    assert again.metadata == {"note": "small"}
    for name in ("quality_against_speed.png", "law_shift_by_entropy_of_the_target.png"):
        assert (tmp_path / name).stat().st_size > 5000
        assert f"]({name})" in (tmp_path / "report.md").read_text()
    with pytest.raises(ValueError, match="schema_version is 9"):
        sv.Diagnosis.from_dict({**found.to_dict(), "schema_version": 9})
    with pytest.raises(ValueError, match="missing fields: runs"):
        sv.Diagnosis.from_dict({name: value for name, value in found.to_dict().items() if name != "runs"})
    (tmp_path / "diagnosis.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        sv.Diagnosis.load(tmp_path / "diagnosis.json")


def test_reports_show_the_same_numbers(found):
    markdown, page = found.markdown(), found.html()
    for text in (markdown, page):
        for part in ("lenience(leniency=0.5)", "matched baseline", "lossless speculation", "score: gsm8k", "max law/p"):
            assert part in text
        for arm in ARMS:
            assert str(found.table[arm]["perplexity"]) in text
        assert str(found.laws["tv"].drafted) in text
    assert page.count("<svg") == 2
    widths = {line.count("|") for line in markdown.splitlines() if line.startswith("| tokens/s |")}
    assert widths == {6}


def test_names_can_not_break_the_reports(found):
    diagnosis = sv.Diagnosis(found.samples, {"note": "<script>a|b</script>"})
    assert "<script>" not in diagnosis.html()
    assert "a\\|b" in diagnosis.markdown()


def test_reports_do_without_matplotlib(found, tmp_path, monkeypatch):
    monkeypatch.setattr("hf_specverify.diagnostics.plots.find_spec", lambda name: None)
    found.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["diagnosis.json", "report.html", "report.md"]
    assert "<svg" not in (tmp_path / "report.html").read_text()


def test_batches_in_place_of_texts():
    target = tiny.make_model()
    batches = [tiny.prompts(2), tiny.prompts(1, seed=8)]
    found = sv.diagnose(target, tiny.near_copy(target), iter(batches), rule="typical", max_new_tokens=6)
    assert found.settings["batch_sizes"] == [2, 1]
    assert all(sequence.text is None for sequence in found.sequences("rule"))


def test_lookup_has_a_matched_truncation_but_no_matched_mixture():
    target = tiny.make_model()
    found = sv.diagnose(target, sv.PromptLookup(), [tiny.prompts(2)], rule="min_p", max_new_tokens=6)
    assert found.arms == ARMS
    with pytest.raises(ValueError, match="matched=True: the baseline of rule='lenience' needs a draft model"):
        sv.diagnose(target, sv.PromptLookup(), [tiny.prompts(2)], max_new_tokens=6)
    found = sv.diagnose(target, sv.PromptLookup(), [tiny.prompts(2)], matched=False, max_new_tokens=6)
    assert "rule" in found.table


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rule": "token"}, ValueError, "verification='token'"),
        ({"rule": "none"}, ValueError, "verification must be one of"),
        ({"options": {"leniency": 2.0}}, ValueError, "leniency"),
        ({"options": {"weight": 0.5}}, TypeError, "no options"),
        ({"do_sample": False}, ValueError, "do_sample=False"),
        ({"num_return_sequences": 2}, ValueError, "num_return_sequences=2"),
        ({"repeats": 0}, ValueError, "repeats=0"),
        ({"max_new_tokens": 0}, ValueError, "max_new_tokens=0"),
        ({"tasks": [None]}, ValueError, "tasks has 1 entries for 3 prompts"),
        ({"tokenizer": None}, TypeError, "tokenizer="),
        ({"batch_size": 0}, ValueError, "batch_size=0"),
        ({"prompts": []}, ValueError, "prompts holds nothing"),
        ({"prompts": ["text", 3]}, TypeError, "prompts: allowed are"),
    ],
)
def test_what_is_refused(models, options, error, message):
    with pytest.raises(error, match=message):
        run(models, **options)


def test_a_single_text_is_no_sequence(models):
    with pytest.raises(ValueError, match="a sequence of at least one prompt"):
        sv.diagnose(*models, "text", tokenizer=byte_tokenizer())
