"""Calibrations go to the Hub and come back, through its own client, against a small server with its interface.

With HF_TOKEN and SPECVERIFY_HUB_TESTS=1 the round trip runs against the real Hub too, in a repository of its own.
"""

import os
import shutil
import subprocess
import sys
import uuid

import huggingface_hub
import pytest
import tiny
import torch
from hub_server import TOKEN, USER, hub_server
from hub_tables import full_table, small_costs, small_table
from huggingface_hub import HfApi, ModelCard, constants
from transformers import AutoModelForCausalLM

import hf_specverify as sv
from hf_specverify.hub import shipped
from hf_specverify.hub.names import UPLOADED
from hf_specverify.scheduling import CalibrationTable, CostModel

REAL = os.environ.get("SPECVERIFY_HUB_TESTS") == "1" and bool(os.environ.get("HF_TOKEN"))
SIGNALS = {"S": torch.linspace(0, 1, 40), "q": torch.linspace(1, 0, 40)}


def point_at(monkeypatch, endpoint, cache):
    """Let this process use a server and a cache of its own, as HF_ENDPOINT and HF_HOME would at its start."""
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    shipped._of_hub.cache_clear()


@pytest.fixture
def server(monkeypatch, tmp_path):
    with hub_server() as hub:
        point_at(monkeypatch, hub.endpoint, tmp_path / "cache")
        yield hub


@pytest.fixture(params=["local", pytest.param("real", marks=pytest.mark.skipif(not REAL, reason="not asked for"))])
def repository(request, monkeypatch, tmp_path):
    """The name of a repository that isn't there yet."""
    if request.param == "local":
        with hub_server() as hub:
            point_at(monkeypatch, hub.endpoint, tmp_path / "cache")
            yield f"{USER}/calibration"
        return
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    name = f"{HfApi().whoami()['name']}/specverify-test-{uuid.uuid4().hex[:8]}"
    try:
        yield name
    finally:
        HfApi().delete_repo(name, missing_ok=True)


@pytest.fixture(scope="module")
def models():
    target = tiny.make_model()
    return {"target": target, "draft": tiny.near_copy(target), "companion": tiny.near_copy(target, seed=5)}


def test_a_table_goes_up_and_comes_back(repository, models, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    table = full_table(**models)
    first = table.push_to_hub(repository, private=True, costs=small_costs({"target": models["target"]}))
    info = HfApi().model_info(repository)
    assert info.sha == first
    assert info.private
    assert {entry.rfilename for entry in info.siblings} >= set(UPLOADED)
    card = ModelCard.load(repository)
    assert card.data.library_name == "hf_specverify"
    assert card.data.datasets == ["someone/prompts"]
    assert f'calibration="{repository}"' in card.content
    loaded = CalibrationTable.from_pretrained(repository)
    assert torch.equal(loaded.predict(SIGNALS), table.predict(SIGNALS))
    assert loaded.origin == table.origin
    assert loaded.origin.figures.auc == table.calibration_error().overall.auc
    # Another commit on main, and one on a branch: each revision gives its own.
    other = small_table(("q",))
    second = other.push_to_hub(repository)
    third = small_table(("S",)).push_to_hub(repository, revision="only-s")
    names = {revision: CalibrationTable.from_pretrained(repository, revision).names for revision in (first, second)}
    assert names == {first: ("S", "q"), second: ("q",)}
    for revision in ("only-s", third):
        assert CalibrationTable.from_pretrained(repository, revision=revision).names == ("S",)
    assert CalibrationTable.from_pretrained(repository).names == ("q",)
    with pytest.raises(OSError, match="no revision 'nowhere'"):
        CalibrationTable.from_pretrained(repository, revision="nowhere")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "another"))
    with pytest.raises(OSError, match=r"is private; there is no token: log in \(hf auth login\) or set HF_TOKEN"):
        CalibrationTable.from_pretrained(repository)
    with pytest.raises(OSError, match="no token"):
        table.push_to_hub(repository)


def test_only_the_data_is_fetched_and_only_once(server, models):
    full_table(**models).push_to_hub("calibration")
    server.requests.clear()
    for _ in range(2):
        CalibrationTable.from_pretrained(f"{USER}/calibration")
    fetched = [path.rpartition("/")[2] for method, path in server.requests if method == "GET" and "/resolve/" in path]
    assert sorted(fetched) == ["calibration.json", "calibration.safetensors"]


def test_what_is_in_the_cache_needs_no_hub(server, models, monkeypatch):
    commit = full_table(**models).push_to_hub("calibration")
    CalibrationTable.from_pretrained(f"{USER}/calibration")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    huggingface_hub.close_session()
    server.requests.clear()
    assert CalibrationTable.from_pretrained(f"{USER}/calibration").names == ("S", "q")
    assert CalibrationTable.from_pretrained(f"{USER}/calibration", revision=commit).names == ("S", "q")
    with pytest.raises(OSError, match="not in the local cache"):
        CalibrationTable.from_pretrained(f"{USER}/another")
    assert not server.requests


def test_errors_of_the_hub_say_what_to_do(server, models):
    table = small_table()
    with pytest.raises(OSError, match="'them/theirs' is not on the Hub, or is private; the token in use"):
        CalibrationTable.from_pretrained("them/theirs")
    with pytest.raises(OSError, match=r"the Hub refuses access \(403\)"):
        table.push_to_hub("them/theirs")
    for name in ("a/b/c", "../x", ""):
        with pytest.raises(ValueError, match="repo_id must be"):
            table.push_to_hub(name)
    HfApi().create_repo("empty")
    with pytest.raises(ValueError, match=r"calibration\.json can't be read"):
        CalibrationTable.from_pretrained(f"{USER}/empty")


def test_a_damaged_repository_is_refused(server):
    small_table().push_to_hub("calibration")
    HfApi().upload_file(path_or_fileobj=b"{", path_in_repo="calibration.json", repo_id=f"{USER}/calibration")
    with pytest.raises(ValueError, match=r"calibration\.json can't be read"):
        CalibrationTable.from_pretrained(f"{USER}/calibration")


def test_generate_takes_the_name_of_a_repository(server, models, monkeypatch):
    full_table(**models).push_to_hub("calibration", costs=small_costs(models))
    target = models["target"]
    options = {
        "assistant_model": models["draft"], "companion_model": models["companion"], "verify_length": "goodput",
        "max_new_tokens": 12, "do_sample": False, "return_dict_in_generate": True,
    }  # fmt: skip

    def profile(*arguments, **options):
        raise AssertionError("measured, and there are costs beside the calibration")

    monkeypatch.setattr(CostModel, "profile", profile)
    with sv.enabled(target):
        plain = target.generate(**tiny.prompts(), max_new_tokens=12, do_sample=False)
        found = target.generate(**tiny.prompts(), calibration=f"{USER}/calibration", **options)
        asked = len(server.requests)
        target.generate(**tiny.prompts(), calibration=f"{USER}/calibration", **options)
    assert torch.equal(found.sequences, plain)
    assert found.speculation.schedule == "goodput"
    assert len(server.requests) == asked  # a table is read once


SCRIPT = """
import pathlib, sys
import torch
from transformers import AutoModelForCausalLM
from hf_specverify.scheduling import CalibrationTable
folder = pathlib.Path(sys.argv[1])
target, draft = (AutoModelForCausalLM.from_pretrained(folder / name) for name in ("target", "draft"))
ids = torch.tensor([[5, 6, 7, 8, 9]])
options = {"max_new_tokens": 12, "do_sample": False}
plain = target.generate(ids, **options)
found = target.generate(
    ids, custom_generate=sys.argv[2], trust_remote_code=True, assistant_model=draft, num_draft_tokens=3,
    verify_length="goodput", return_dict_in_generate=True, **options,
)
assert torch.equal(found.sequences, plain), (found.sequences, plain)
assert found.speculation.drafted > 0
assert "generate" not in vars(target)
print(found.speculation.schedule, CalibrationTable.from_pretrained(sys.argv[2]).names)
"""


def test_custom_generate_from_the_hub_then_offline(server, models, tmp_path):
    """In processes of their own, which read the environment as users set it; the second without any network."""
    here = {}
    for role in ("target", "draft"):
        models[role].save_pretrained(tmp_path / role)
        here[role] = AutoModelForCausalLM.from_pretrained(tmp_path / role)
    full_table(**here, names=("q",)).push_to_hub("calibration", costs=small_costs(here))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": server.endpoint, "HF_HUB_DISABLE_XET": "1"}
    environment |= {"HF_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), f"{USER}/calibration"]
    for offline in ("0", "1"):
        server.requests.clear()
        ran = subprocess.run(
            command, env=environment | {"HF_HUB_OFFLINE": offline}, capture_output=True, text=True, timeout=300
        )
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.splitlines()[-1] == "goodput ('q',)"
        assert "costs=None" not in ran.stderr  # those of the repository were taken
        assert bool(server.requests) == (offline == "0")


def test_costs_go_along(server, models, tmp_path):
    costs = small_costs({"target": models["target"]})
    small_table().push_to_hub("calibration", costs=costs)
    folder = huggingface_hub.snapshot_download(f"{USER}/calibration")
    shutil.copy(f"{folder}/cost_table.json", tmp_path / "costs.json")
    assert CostModel.load(tmp_path / "costs.json", {"target": models["target"]}).points == costs.points
