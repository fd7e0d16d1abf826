"""After how many layers does a model know its next token? What early exit could get, for all exits at once.

    python examples/exit_agreement.py TARGET PROMPTS [--num-prompts 4] [--max-new-tokens 48] [--every 2]

Each answer is generated once, greedily. Printed by number of layers: the share of tokens that the first layers would
have chosen too, given the text before, which is the acceptance of the first draft token of `EarlyExit(layers)`; and
what steps of one draft token bring at most, were the head free and a pass over two tokens as fast as over one:
(1 + agreement) tokens in (1 + layers / all layers) passes.
"""

import argparse

import torch
from transformers import AutoTokenizer

import hf_specverify as sv
from hf_specverify.benchmark.environment import load_model
from hf_specverify.benchmark.prompts import chat_encoder, read_prompts, select_evenly
from hf_specverify.benchmark.runs import neutral_generation, pad_token_id


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("prompts")
    parser.add_argument("--num-prompts", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--every", type=int, default=2, help="layers from one exit to the next")
    options = parser.parse_args()
    target, tokenizer = load_model(options.target, "bfloat16"), AutoTokenizer.from_pretrained(options.target)
    texts = read_prompts(options.prompts)
    encode, pad = chat_encoder(tokenizer), pad_token_id(target, tokenizer)
    total = target.config.num_hidden_layers
    exits = range(total - options.every, 0, -options.every)
    hits, tokens = dict.fromkeys(exits, 0), 0
    for index in select_evenly(options.num_prompts, len(texts)):
        ids = torch.tensor([encode(texts[index])["input_ids"]], device=target.device)
        with neutral_generation([target], pad):
            whole = target.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=options.max_new_tokens
            )
        answer = whole[0, ids.shape[1] :]
        tokens += len(answer)
        for layers in exits:
            with torch.no_grad():
                logits = sv.cut_layers(target, layers)(input_ids=whole[:, :-1], logits_to_keep=len(answer)).logits
            hits[layers] += int((logits[0].argmax(-1) == answer).sum())
    print(f"{tokens} tokens, {total} layers\n")
    print("| layers | agreement | tokens per pass, at most |\n| --- | --- | --- |")
    for layers, count in sorted(hits.items()):
        share = count / tokens
        print(f"| {layers} | {share:.3f} | {(1 + share) / (1 + layers / total):.2f} |")


if __name__ == "__main__":
    main()
