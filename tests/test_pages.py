"""The pages for users: links lead somewhere, lines and commands run, messages are those of the code."""

import ast
import contextlib
import importlib
import io
import re
import shlex
import shutil
from pathlib import Path

import pytest
import tiny
import transformers
import typer
from tokenizing import byte_tokenizer
from typer.testing import CliRunner

import hf_specverify as sv
from hf_specverify import api_page, drafting, scheduling, verification
from hf_specverify.cli import app
from hf_specverify.docstrings import attribute_docs, parse, signature
from hf_specverify.scheduling import CalibrationTable

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
QUICK_START, CALIBRATING, TROUBLESHOOTING, HOW_IT_WORKS = (
    (DOCS / f"{name}.md").read_text(encoding="utf-8")
    for name in ("quick-start", "calibrating", "troubleshooting", "how-it-works")
)


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where a tiny model stands for the one that the pages name."""
    folder = tmp_path_factory.mktemp("pages")
    tiny.make_model(vocabulary=259, num_hidden_layers=3, max_position_embeddings=512).save_pretrained(folder / "target")
    byte_tokenizer().save_pretrained(folder / "target")
    return folder


# Links


def anchors(page):
    """The names that a page's headings get."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        place, _, anchor = link.partition("#")
        if place.startswith("https://"):
            continue
        file = (page.parent / place).resolve() if place else page
        assert file.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(file), f"{page.name}: {link}"


def test_the_index_has_every_page_once():
    listed = re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(page.name for page in PAGES if page.name != "README.md")


# The API page


def test_the_api_page_is_up_to_date():
    assert (DOCS / "api.md").read_text(encoding="utf-8") == api_page.markdown(), "run `make docs`"


def test_the_api_page_has_every_public_name():
    headings = set(re.findall(r"^### (\w+)$", api_page.markdown(), re.MULTILINE))
    for module in (sv, verification, scheduling, drafting):
        assert set(module.__all__) <= headings
    for name in ("chain", "from_paths", "fit", "information_gain", "push_to_hub", "profile", "latency", "sample"):
        assert f"* `.{name}(" in api_page.markdown()


def test_a_docstring_taken_apart():
    found = parse("""First e.g. one. Second! (Third.) Fourth.

    Args:
        a, b: what they
            are: two.
        *more: others.

    Raises:
        ValueError: for none.
    """)
    assert found.sentences(2) == "First e.g. one. Second!"
    assert found.entries == {
        "Args": [("a, b", "what they are: two."), ("*more", "others.")], "Raises": [("ValueError", "for none.")]
    }  # fmt: skip


def test_signatures_and_attribute_docs():
    def function(a: "int", *rest: "str", key: "float | None" = None) -> "list[int]": ...

    assert signature("f", function) == "f(a: int, *rest: str, key: float | None = None) -> list[int]"
    assert signature("f", function, width=20).splitlines()[:2] == ["f(", "    a: int,"]
    assert signature("f", lambda a, *, b=len: 0) == "f(a, *, b = …)"
    assert attribute_docs(sv.SpeculationConfig)["require_lossless"] == "Refuse a verifier that changes the output law."


# Lines that run


def printed(code, names):
    """Run a block; what it prints, and what comments behind its print lines say that it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, names)
    return out.getvalue().splitlines(), re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)


def test_how_it_works_runs_as_it_says():
    shown, promised = printed(blocks(HOW_IT_WORKS, "python")[0], {})
    assert shown == promised == ["[0.2, 0.5, 0.3]"]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_quick_start_runs_from_top_to_bottom(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code = "\n".join(blocks(QUICK_START, "python"))
    for told, here in (
        ('"HuggingFaceTB/SmolLM2-135M-Instruct"', repr(str(folder / "target"))),
        ("cut_layers(target, 28)", "cut_layers(target, 2)"),
        ("budget_seconds=5", "budget_seconds=0.1"),
    ):
        assert told in code
        code = code.replace(told, here)
    names = {}
    shown, _ = printed(code, names)
    assert any(line.startswith("tokens per pass") for line in shown)
    assert Path("costs.json").exists()
    for word in ("tokens per pass", "acceptance rate", "by phase", "outside forwards"):
        assert f"`{word}`" in QUICK_START and any(word in line for line in shown)


# Commands


def click_command(name):
    """The command of that name, with all its options."""
    if name == "demo":
        return typer.main.get_command(app).commands["demo"]
    place = "hf_specverify.benchmark.bench_command" if name == "bench" else f"hf_specverify.{name}_command"
    module, inner = importlib.import_module(place), typer.Typer()
    inner.command(name=name)(getattr(module, f"{name}_command", None) or getattr(module, name))
    return typer.main.get_command(inner)


def commands_of(text):
    """The words of every `specverify …` line of a page; lines may be continued."""
    for block in re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("specverify "):
                yield shlex.split(line, comments=True)[1:]


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_commands_and_their_options_exist(page):
    known = set(typer.main.get_command(app).commands)
    for words in commands_of(page.read_text(encoding="utf-8")):
        if words[0] in ("--help", "--version"):
            continue
        assert words[0] in known, words
        options = {opt for param in click_command(words[0]).params for opt in param.opts}
        for word in words[1:]:
            assert not word.startswith("--") or word in options | {"--help"}, (page.name, words[0], word)


def test_calibrating_runs_from_top_to_bottom(folder, monkeypatch, tmp_path):
    """Every command of the page but `push`, which has tests of its own, then its Python lines."""
    monkeypatch.chdir(tmp_path)
    target = str(folder / "target")
    small = {"HuggingFaceTB/SmolLM2-135M-Instruct": target, "28": "2", "26": "1", "15": "0.1", "48": "8"}
    prompts = re.search(r"cat > prompts.txt <<'END'\n(.*?)END\n", CALIBRATING, re.DOTALL)[1]
    Path("prompts.txt").write_text(prompts)
    ran = []
    for words in commands_of(CALIBRATING):
        if words[0] != "push":
            words = [small.get(word, word) for word in words]
            result = CliRunner().invoke(app, words)
            assert result.exit_code == 0, (words, result.output, result.exception)
            ran.append(words[0])
    assert ran == ["companion", "companion", "profile", "calibrate", "explain"]
    assert "cp costs.json my-table/cost_table.json\n" in CALIBRATING
    shutil.copy("costs.json", "my-table/cost_table.json")
    assert CalibrationTable.from_pretrained("my-table").names
    code = "\n".join(blocks(CALIBRATING, "python"))
    code = code.replace("HuggingFaceTB/SmolLM2-135M-Instruct", target).replace("USER/my-table", "my-table")
    exec(code, names := {})
    assert names["out"].speculation.schedule == "goodput"
    assert names["again"].speculation.schedule == "auto"


# Messages


def strings_of(file):
    """All strings in a file of code, with … for what is put into them."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_messages_that_are_explained_are_those_of_the_code():
    tables = TROUBLESHOOTING.split("## Errors")[1].split("## Memory")[0]
    quoted = re.findall(r"^\| `([^`]+)`(?:[:,] [^|]*?)?( \(the host's\))? \|", tables, re.MULTILINE)
    assert len(quoted) == len(re.findall(r"^\| `", tables, re.MULTILINE)) > 25
    host = Path(transformers.__file__).parent
    places = {"": (ROOT / "hf_specverify").rglob("*.py")}
    places[" (the host's)"] = [host / "generation" / "utils.py", host / "tokenization_utils_base.py"]
    said = {whose: "\n".join(text for file in files for text in strings_of(file)) for whose, files in places.items()}
    for message, whose in quoted:
        pattern = ".*".join(re.escape(part) for part in message.split("…"))
        assert re.search(pattern, said[whose].replace("`", "")), message
