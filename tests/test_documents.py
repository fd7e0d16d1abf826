"""What the documents show is what the code does."""

import re
from pathlib import Path

import hf_specverify as sv
from hf_specverify import verification

VERIFIERS = (Path(__file__).parents[1] / "docs" / "verifiers.md").read_text(encoding="utf-8")
LOSSY = (Path(__file__).parents[1] / "docs" / "lossy-verification.md").read_text(encoding="utf-8")


def test_the_table_of_verifiers():
    lossless = {name: info for name, info in sv.verifiers().items() if info.lossless}
    for name, info in lossless.items():
        drafts = "one chain" if info.structure == "chain" else ", ".join(info.drafts).replace("_", " ")
        assert f"| `{name}` | {drafts} | {info.summary} ({info.paper}) |" in VERIFIERS
    table = VERIFIERS.split("Letters:")[0]
    assert len(re.findall(r"^\| `", table, re.MULTILINE)) == len(lossless)


def test_the_table_of_lossy_rules():
    rules = {name: info for name, info in sv.verifiers().items() if not info.lossless}
    for name, info in rules.items():
        assert f"| `{name}` | {info.summary} ({info.paper}) |" in LOSSY
    assert len(re.findall(r"^\| `", LOSSY.split("Letters:")[0], re.MULTILINE)) == len(rules)


def test_a_verifier_of_one_s_own():
    code = re.search(r"```python\n(.*?)```", VERIFIERS, re.DOTALL)
    try:
        exec(code[1], {})
        assert "suspicious" in sv.verifiers()
    finally:
        verification._REGISTRY.pop("suspicious", None)
