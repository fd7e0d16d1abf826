"""Speculative decoding in a text-generation pipeline: a batch of chats, then one that is streamed.

    python examples/pipeline.py TARGET DRAFT [COMPANION]

All are Hub ids or folders of models with one tokenizer. DRAFT may be quantised, as `specverify companion` makes them.
"""

import sys

from transformers import TextStreamer, pipeline

import hf_specverify as sv

QUESTIONS = [
    "Add type hints to this function: def area(width, height): return width * height",
    "Explain in two sentences why the sky is blue.",
    "Name three uses of copper.",
]


def main(target: str, draft: str, companion: str | None = None) -> None:
    pipe = pipeline("text-generation", model=target)
    pipe.tokenizer.padding_side = "left"
    sv.enable(pipe.model)
    speculation = {"assistant_model": draft, "companion_model": companion, "num_draft_tokens": 5}
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    for found in pipe(chats, batch_size=len(chats), max_new_tokens=64, **speculation):
        print(found[0]["generated_text"][-1]["content"], end="\n\n")
    streamer = TextStreamer(pipe.tokenizer, skip_prompt=True, skip_special_tokens=True)
    pipe(chats[0], streamer=streamer, max_new_tokens=64, **speculation)


if __name__ == "__main__":
    main(*sys.argv[1:])
