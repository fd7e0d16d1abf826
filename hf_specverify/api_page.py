"""The page `docs/api.md`: every public name with its signature and what its docstring says of it.

`make docs` writes it, and a test compares them.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import math
from collections.abc import Iterator
from typing import Any

from .docstrings import Docstring, attribute_docs, parse, signature

# In the order of the page; a name is described where it is first found.
_MODULES = {
    "hf_specverify": "What a program needs; `import hf_specverify as sv`.",
    "hf_specverify.verification": "The rules, and what a rule of your own takes and returns; see "
    "[verifiers](verifiers.md).",
    "hf_specverify.scheduling": "What is worth verifying: calibrations, costs, and the mathematics between; see "
    "[speculative verification](speculative-verification.md).",
    "hf_specverify.drafting": "What proposes tokens, and the forms in which it hands them on.",
}
_HEAD = """# API

Written by `make docs` from the docstrings; a test compares them. `Tensor` is `torch.Tensor`. In shapes B is rows, L
draft tokens, V the vocabulary, K paths, N nodes. p is the target's law, q the draft's, c the companion's.
The options of `generate` are the fields of [SpeculationConfig](#speculationconfig), those of a command are shown by
`specverify COMMAND --help`, and the figures of a report are defined in [metrics](metrics.md)."""
_SENTENCES = 3


def markdown() -> str:
    """The page."""
    described: dict[int, str] = {}
    lines = [_HEAD]
    for module_name, introduction in _MODULES.items():
        module = importlib.import_module(module_name)
        names = sorted(module.__all__, key=str.lower)
        new = [name for name in names if id(getattr(module, name)) not in described]
        lines += ["", f"## {module_name}", "", introduction]
        if known := [name for name in names if name not in new]:
            lines += ["", f"Described above: {', '.join(described[id(getattr(module, name))] for name in known)}."]
        for name in new:
            described[id(getattr(module, name))] = f"[`{name}`](#{name.lower()})"
            lines += ["", f"### {name}", "", *_entry(module, name)]
    return "\n".join(lines) + "\n"


def _entry(module: Any, name: str) -> list[str]:
    thing = getattr(module, name)
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        return [attribute_docs(_home(module, name))[name]]
    docstring = parse(inspect.getdoc(thing) or "")
    lines = ["```python", signature(name, thing), "```", "", docstring.sentences(_SENTENCES)]
    details = [*_details(docstring), *(_members(thing) if inspect.isclass(thing) else ()), *_errors(docstring)]
    return [*lines, "", *details] if details else lines


def _home(package: Any, name: str) -> Any:
    """The module that a package has a constant from, for it does not say so itself."""
    for statement in ast.walk(ast.parse(inspect.getsource(package))):
        if isinstance(statement, ast.ImportFrom) and name in (alias.name for alias in statement.names):
            return importlib.import_module("." * statement.level + (statement.module or ""), package.__name__)
    raise ValueError(f"{package.__name__}.{name} is not imported from anywhere")


def _details(docstring: Docstring) -> Iterator[str]:
    for section in ("Args", "Attributes"):
        for names, said in docstring.entries.get(section, ()):
            yield f"* {', '.join(f'`{name}`' for name in names.split(', '))}: {said}"
    if results := docstring.entries.get("Returns"):
        yield f"* returns: {' '.join(said for _, said in results)}"


def _errors(docstring: Docstring) -> Iterator[str]:
    for names, said in docstring.entries.get("Raises", ()):
        yield f"* raises {', '.join(f'`{name}`' for name in names.split(', '))}: {said}"


def _members(thing: type) -> Iterator[str]:
    """The documented fields of a class, then its own methods and properties, a sentence each."""
    for name, said in attribute_docs(thing).items():
        yield f"* `{name}`: {said}"
    for name, member in vars(thing).items():
        if name.startswith("_") and name != "__add__":
            continue
        found = parse(inspect.getdoc(getattr(thing, name)) or "").sentences(1)
        if isinstance(member, property) or type(member).__name__ == "cached_property":
            yield f"* `.{name}`: {found}"
        elif isinstance(member, staticmethod | classmethod) or inspect.isfunction(member):
            yield f"* `.{signature(name, getattr(thing, name), math.inf)}`: {found}"
