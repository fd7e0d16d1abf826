"""Growth of memory over a call, plain and ours, with the vocabulary of Qwen2.5 and hardly any model around it.

    python examples/step_memory.py

Random weights, one layer of width 32, bf16; prompts of 16 tokens, 17 new ones, seven draft tokens; the second of two
calls.
"""

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import hf_specverify as sv
from hf_specverify.benchmark.measuring import peak_growth

VOCABULARY = 151_936


def model() -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=True, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).to(torch.bfloat16).eval()


def main() -> None:
    torch.manual_seed(0)
    target, draft = model(), model()
    sv.enable(target)
    ways = {"plain": {}, "ours": {"assistant_model": draft, "num_draft_tokens": 7}}
    modes = {"greedy": {"do_sample": False}, "sampling": {"do_sample": True, "top_k": 0, "temperature": 1.0}}
    for batch in (1, 8, 32):
        for mode, sampling in modes.items():
            for way, options in ways.items():
                ids = torch.randint(3, VOCABULARY, (batch, 16))
                arguments = {"max_new_tokens": 17, "pad_token_id": 0, **sampling, **options}
                target.generate(ids, **arguments)
                with peak_growth(torch.device("cpu")) as growth:
                    target.generate(ids, **arguments)
                print(f"batch {batch}, {mode}, {way}: {growth.bytes / 2**20:.0f} MB")


if __name__ == "__main__":
    main()
