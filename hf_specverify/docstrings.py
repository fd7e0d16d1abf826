"""Docstrings taken apart, and signatures as text: what the API page is made of."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields):$")
_ENTRY = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*): (.*)$")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"(])")
_MODULE = re.compile(r"\b(?:typing|hf_specverify)\.(?:[a-z_]+\.)*")


@dataclass
class Docstring:
    """One docstring.

    Attributes:
        text: what stands before the first section, one paragraph a line.
        entries: by section ("Args", "Attributes", "Raises"), the names in it and what is said of them.
    """

    text: str
    entries: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    def sentences(self, count: int) -> str:
        """The first so many sentences of the text."""
        return " ".join(_SENTENCE_END.split(" ".join(self.text.split()))[:count])


def parse(text: str) -> Docstring:
    """Take a docstring apart, whose sections are "Args:", "Attributes:", "Returns:", "Raises:" and "Yields:"."""
    parsed, section = Docstring(""), None
    for line in inspect.cleandoc(text).splitlines():
        if found := _SECTION.match(line):
            section = parsed.entries.setdefault(found[1], [])
        elif section is None:
            parsed.text += line + "\n"
        else:
            _add(section, line)
    return parsed


def _add(section: list[tuple[str, str]], line: str) -> None:
    """Begin an entry with a line that is indented once, or continue the last one; more entries may share a line."""
    indent, words = len(line) - len(line.lstrip()), line.strip()
    if not words:
        return
    entry = _ENTRY.match(words)
    if entry and indent <= 4:
        section.append((entry[1], entry[2]))
    elif section:
        name, said = section[-1]
        section[-1] = name, f"{said} {words}"
    else:
        section.append(("", words))


def attribute_docs(owner: Any) -> dict[str, str]:
    """The strings that stand behind assignments in a class or module, by the name that is assigned to."""
    body: list[ast.stmt] = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    if isinstance(body[0], ast.ClassDef) and inspect.isclass(owner):
        body = body[0].body
    found = {}
    for statement, after in pairwise(body):
        name = _assigned(statement)
        if name and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found[name] = " ".join(str(after.value.value).split())
    return found


def _assigned(statement: ast.stmt) -> str | None:
    """The name that a statement assigns to, if it is one of `name = …` and `name: type = …`."""
    if isinstance(statement, ast.AnnAssign):
        target: ast.expr = statement.target
    elif isinstance(statement, ast.Assign):
        target = statement.targets[0]
    else:
        return None
    return target.id if isinstance(target, ast.Name) else None


def signature(name: str, function: Any, width: float = 100) -> str:
    """How a function, class or bound method is called: `name(argument: type = default) -> type`.

    Where that is longer than `width`, every parameter has a line.
    """
    described = inspect.signature(function)
    parts, seen_star = [], False
    for parameter in described.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not seen_star:
            parts.append("*")
        seen_star |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        parts.append(_parameter(parameter))
    result = described.return_annotation
    ending = "" if inspect.isclass(function) or result is inspect.Signature.empty else f" -> {_annotation(result)}"
    line = f"{name}({', '.join(parts)}){ending}"
    if len(line) <= width:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){ending}"])


def _parameter(parameter: inspect.Parameter) -> str:
    text = parameter.name
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        text = ("*" if parameter.kind is parameter.VAR_POSITIONAL else "**") + text
    if parameter.annotation is not parameter.empty:
        text += f": {_annotation(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return text
    default = repr(parameter.default)
    return f"{text} = {'…' if default.startswith('<') else default}"


def _annotation(annotation: Any) -> str:
    """Its text without the modules that names are from."""
    text: str = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _MODULE.sub("", text)
