"""Speculative decoding in model.generate: a batch, with a draft model or without one.

    python examples/quickstart.py TARGET [DRAFT]

TARGET and DRAFT are Hub ids or folders of two models with one tokenizer; without DRAFT, prompt lookup drafts.
"""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

import hf_specverify as sv

PROMPTS = [
    "Add type hints to this function: def area(width, height): return width * height",
    "Explain in two sentences why the sky is blue.",
]


def main(target_name: str, draft_name: str | None = None) -> None:
    tokenizer = AutoTokenizer.from_pretrained(target_name, padding_side="left")
    target = AutoModelForCausalLM.from_pretrained(target_name)
    drafter = AutoModelForCausalLM.from_pretrained(draft_name) if draft_name else sv.PromptLookup()

    texts = [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True)
        for text in PROMPTS
    ]
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    sv.enable(target)
    out = target.generate(**inputs, assistant_model=drafter, max_new_tokens=64, return_dict_in_generate=True)
    for text in tokenizer.batch_decode(out.sequences[:, inputs.input_ids.shape[1] :], skip_special_tokens=True):
        print(text, end="\n\n")
    print(out.speculation)


if __name__ == "__main__":
    main(*sys.argv[1:])
