"""Write instructions about functions of Python's standard library, to train a feature head on.

Every instruction holds a function that the interpreter brings along: its source, or its first lines and its docstring.
So they are as different from each other as the functions of different authors are. Usage:

    python examples/library_prompts.py library.jsonl --count 400 --seed 0
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path

LEFT_OUT = {
    "test",
    "tests",
    "idlelib",
    "site-packages",
    "dist-packages",
    "lib2to3",
    "turtledemo",
    "ensurepip",
    "encodings",
}
SHORTEST, LONGEST = 5, 24  # lines of a function
ASKED_OF_THE_SOURCE = [
    "Explain what this function does.",
    "Write a docstring for this function.",
    "Write tests for this function.",
    "Add type annotations to this function.",
    "What could go wrong in this function?",
    "Rewrite this function so that it is easier to read.",
    "Give an example of how this function is used.",
    "Explain this code line by line to a beginner.",
]
ASKED_OF_THE_BEGINNING = [
    "Write the body of this function.",
    "Write this Python function.",
    "How would you write this in JavaScript?",
    "Give three examples of what this function returns.",
]


def functions(folder: Path) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Source and syntax of every function of a folder that has a docstring and is neither tiny nor long."""
    for path in sorted(folder.rglob("*.py")):
        if LEFT_OUT & {*path.relative_to(folder).parts}:
            continue
        try:
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text)
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef) or not ast.get_docstring(node):
                continue
            source = textwrap.dedent(ast.get_source_segment(text, node, padded=True) or "")
            if SHORTEST <= len(source.splitlines()) <= LONGEST:
                yield source, node


def instruction(source: str, node: ast.FunctionDef, draw: random.Random) -> str:
    """A question about a function: of its source, or of its first line and its docstring."""
    if draw.random() < 0.5:
        return f"{draw.choice(ASKED_OF_THE_SOURCE)}\n\n```python\n{source}\n```"
    beginning = ast.FunctionDef(
        name=node.name, args=node.args, body=node.body[:1], decorator_list=[], returns=node.returns, type_params=[]
    )
    shown = ast.unparse(ast.fix_missing_locations(ast.Module(body=[beginning], type_ignores=[])))
    return f"{draw.choice(ASKED_OF_THE_BEGINNING)}\n\n```python\n{shown}\n```"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    found = list(functions(Path(sysconfig.get_paths()["stdlib"])))
    if arguments.count > len(found):
        parser.error(f"--count: the library has {len(found)} such functions, not {arguments.count}")
    prompts = [instruction(source, node, draw) for source, node in draw.sample(found, arguments.count)]
    arguments.out.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts), encoding="utf-8")


if __name__ == "__main__":
    main()
