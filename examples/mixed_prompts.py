"""Mix prompts of three kinds into one file, by turns chat, mathematics and code, as docs/benchmarks.md uses them.

    python examples/mixed_prompts.py SPEC_BENCH GSM8K HUMANEVAL COUNT > mixed.jsonl

Takes Spec-Bench's question.jsonl (its chat categories, questions below 500 characters, evenly spaced), GSM8K's
test.jsonl and HumanEval.jsonl or .jsonl.gz (the first ones of both); COUNT prompts of each.
"""

import gzip
import json
import sys
from pathlib import Path

CHAT = {"writing", "reasoning", "humanities", "stem"}


def read(name: str) -> list[dict]:
    path = Path(name)
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in data.decode("utf-8").splitlines()]


def main(spec_bench: str, gsm8k: str, human_eval: str, count: int) -> None:
    chat = [row["turns"][0] for row in read(spec_bench) if row["category"] in CHAT]
    chat = [text for text in chat if len(text) < 500]
    chat = chat[:: len(chat) // count][:count]
    mathematics = [row["question"] for row in read(gsm8k)[:count]]
    code = [f"Complete this function.\n```python\n{row['prompt'].rstrip()}\n```" for row in read(human_eval)[:count]]
    for texts in zip(chat, mathematics, code, strict=True):
        for text in texts:
            print(json.dumps({"prompt": text}))


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
