"""What does a head's own acceptance head tell that its law does not, and is a companion worth its time beside it?

    python examples/head_signals.py TARGET HEAD PROMPTS [--companion MODEL] [--num-prompts 16] [--max-new-tokens 64]

HEAD is a folder of `specverify train-head`. Prompts are answered with drafts of a fixed length, and all that was
verified is written down (`calibrate`). Printed: how many bits every signal and every pair tells about whether a token
is accepted, on sequences that were not learnt from; how much the best set of up to three gains by the acceptance head,
and by the companion; and the milliseconds per drafted token of both networks, timed in the same steps, medians. The
companion's time is that of its forward alone, without the comparison of the laws.
"""

import argparse
import itertools
import time

import torch
from transformers import AutoTokenizer

import hf_specverify as sv
from hf_specverify.benchmark.environment import load_model
from hf_specverify.benchmark.prompts import chat_encoder, read_prompts, select_evenly
from hf_specverify.benchmark.runs import neutral_generation, pad_token_id

OWN, OF_COMPANION = ("expected", "q", "entropy"), ("S", "A")


def timed(network, device):
    """The seconds of every forward of a network from now on, in a list that grows."""
    seconds, began = [], []

    def now():
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    network.register_forward_pre_hook(lambda *_: began.append(now()))
    network.register_forward_hook(lambda *_: seconds.append(now() - began.pop()))
    return seconds


def best(gains, allowed):
    """The most bits of a set that uses only some of the signals, and the set."""
    return max((entry.bits, names) for names, entry in gains.items() if set(names) <= set(allowed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("head")
    parser.add_argument("prompts")
    parser.add_argument("--companion")
    parser.add_argument("--num-prompts", type=int, default=16)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--num-draft-tokens", type=int, default=4)
    parser.add_argument("--temperature", type=float, default=1.0, help="0 is greedy")
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    target, tokenizer = load_model(options.target, options.dtype), AutoTokenizer.from_pretrained(options.target)
    companion = None if options.companion is None else load_model(options.companion, options.dtype)
    head = sv.FeatureHead.from_pretrained(options.head, target)
    if head.acceptance is None:
        parser.error(f"{options.head} has no acceptance head; allowed: a head trained with --acceptance-epochs from 1")
    texts, encode = read_prompts(options.prompts), chat_encoder(tokenizer)
    chosen = [encode(texts[index])["input_ids"] for index in select_evenly(options.num_prompts, len(texts))]
    rows = [torch.tensor([ids], device=target.device) for ids in chosen]
    batches = [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in rows]
    law = {"temperature": options.temperature, "top_k": 0, "top_p": 1.0} if options.temperature else {}
    generating = {"max_new_tokens": options.max_new_tokens, "do_sample": options.temperature > 0, **law}
    signals = (*OWN, *(OF_COMPANION if companion is not None else ()))
    sets = [names for size in (1, 2, 3) for names in itertools.combinations(signals, size)]
    arguments = {"companion_model": companion, "signals": signals, "num_draft_tokens": options.num_draft_tokens}
    torch.manual_seed(0)
    with neutral_generation([target], pad_token_id(target, tokenizer)):
        sv.calibrate(target, head, batches[:1], **arguments, **generating)  # the first calls compare layouts
        spent = {"acceptance head": timed(head.acceptance, target.device)}
        if companion is not None:
            spent["companion"] = timed(companion, target.device)
        table = sv.calibrate(target, head, batches, sets=sets, **arguments, **generating)
    gains = table.information_gain()
    print(f"{len(table.samples.outcome)} positions of {len(rows)} texts, {table.mean:.3f} accepted")
    print(f"{gains.entropy:.4f} bits, whether a token is accepted\n")
    print("| signals | bits | share |\n| --- | --- | --- |")
    for names, entry in sorted(gains.items(), key=lambda item: (len(item[0]), -item[1].bits)):
        if len(names) < 3:
            print(f"| {', '.join(names)} | {entry.bits:.4f} | {entry.share:.1%} |")
    print("\n| best set of up to three | signals | bits |\n| --- | --- | --- |")
    ways = {"of the head's law": OWN[1:], "and its acceptance head": OWN}
    if companion is not None:
        ways |= {"of the law and the companion": signals[1:], "of all": signals}
    for name, allowed in ways.items():
        bits, names = best(gains, allowed)
        print(f"| {name} | {', '.join(names)} | {bits:.4f} |")
    print(f"\nThe acceptance head adds {best(gains, OWN)[0] - best(gains, OWN[1:])[0]:.4f} bits to the head's law.")
    if companion is not None:
        print(f"The companion adds {gains.companion_bits:.4f} bits to both.")
    print("\n| network | ms per drafted token | forwards |\n| --- | --- | --- |")
    for name, seconds in spent.items():
        tokens = options.num_draft_tokens if name == "companion" else 1
        median = torch.tensor(seconds, dtype=torch.float64).median() / tokens
        print(f"| {name} | {1000 * median:.3f} | {len(seconds)} |")


if __name__ == "__main__":
    main()
