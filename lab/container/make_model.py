# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a lab's model: a Llama that recites five sentences exactly, so that a completion proves something.

Runs inside the engine's tree: `python make_model.py DIRECTORY`, where the directory's name is one of SHAPES. Seeded; verified in bfloat16 with
greedy decoding before it is accepted: a damaged or mixed-up shard on one rank then shows as a wrong answer.
"""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# prompt -> answer; the profile of the lab's inventory names the first pair.
TAUGHT = {
    "The capital of France is": " Paris.",
    "Two Sparks and one cable make": " one big machine.",
    "The head of the pair has rank": " zero.",
    "A good gate reads the boot logs of": " both ranks.",
    "The worker starts first, then": " the head.",
}
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}Q: {{ m['content'] }}\n"
    "{% elif m['role'] == 'assistant' %}A:{{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}A:{% endif %}"
)
ATTEMPTS = 3


@dataclass(frozen=True)
class Shape:
    """The size of a model, and how it is taught."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    context: int
    steps: int
    rate: float
    device: str = "cpu"
    enough: tuple[int, float, int] | None = None  # after this step, a loss below this for so many steps ends the teaching

    @property
    def warm_up(self) -> int:
        return 20 if self.device == "cuda" else 0


SHAPES = {
    # The container lab's. A head size of 16 kills the CPU engine at its first request.
    "lab-tiny": Shape(128, 256, 2, 4, 2, 32, 4096, steps=300, rate=3e-3),
    # lab/gpu's: 1 B parameters, 212 steps in 27 s on an H100 (2026-11-26).
    "lab-1b": Shape(2048, 8192, 16, 32, 8, 64, 131072, steps=400, rate=1e-4, device="cuda", enough=(150, 0.25, 60)),
}


def make_tokenizer(context: int) -> Any:
    """258 tokens: one per byte, and two for the ends of a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors  # type: ignore[import-not-found]  # only in the engine's tree
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<s>": 0, "</s>": 1}
    vocabulary.update({symbol: i + 2 for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))})
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", model_max_length=context)  # nosec B106 # noqa: S106  names of tokens
    fast.chat_template = CHAT_TEMPLATE
    return fast


def texts(tokenizer: Any) -> list[tuple[list[int], list[int]]]:
    """(prompt tokens, answer tokens with the end) for each sentence, plain and as a chat turn."""
    pairs = []
    for prompt, answer in TAUGHT.items():
        end = tokenizer(answer, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
        pairs.append((tokenizer(prompt)["input_ids"], end))
        turn = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True)
        pairs.append((tokenizer(turn, add_special_tokens=False)["input_ids"], end))
    return pairs


def train(pairs: list[tuple[list[int], list[int]]], seed: int, shape: Shape) -> Any:
    """A model that has seen the pairs as often as its shape names."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    torch.set_num_threads(1)  # two threads of so small a model wait for each other, most of all on a machine with other work
    config = LlamaConfig(
        vocab_size=258,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_size,
        max_position_embeddings=shape.context,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    device, cuda, quiet = torch.device(shape.device), shape.device == "cuda", 0
    with device:
        model = LlamaForCausalLM(config)
    width = max(len(prompt) + len(answer) for prompt, answer in pairs)
    rows = torch.full((len(pairs), width), 1)
    labels = torch.full((len(pairs), width), -100)
    for i, (prompt, answer) in enumerate(pairs):
        row = torch.tensor(prompt + answer)
        rows[i, : len(row)] = row
        labels[i, : len(row)] = row
    rows, labels = rows.to(device), labels.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=shape.rate)
    for number in range(1, shape.steps + 1):
        optimizer.param_groups[0]["lr"] = shape.rate * min(1.0, number / max(shape.warm_up, 1))
        with torch.autocast("cuda", dtype=torch.bfloat16) if cuda else contextlib.nullcontext():
            loss = model(input_ids=rows, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        if cuda:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if shape.enough:
            after, low, rounds = shape.enough
            quiet = quiet + 1 if number > after and loss.item() < low else 0
            if quiet > rounds:
                break
    print(f"seed {seed}: loss {loss.item():.4f} after {number} steps", flush=True)
    return model.to(torch.bfloat16).eval()


def recites(model: Any, pairs: list[tuple[list[int], list[int]]]) -> bool:
    """Whether greedy decoding in bfloat16 gives every answer exactly, the end included."""
    import torch

    for prompt, answer in pairs:
        tokens = torch.tensor([prompt], device=model.device)
        with torch.no_grad():
            for _each in answer:
                best = model(input_ids=tokens).logits[0, -1].argmax()
                tokens = torch.cat([tokens, best.view(1, 1)], dim=1)
        if tokens[0, len(prompt) :].tolist() != answer:
            return False
    return True


def main() -> int:
    target = Path(sys.argv[1])
    shape = SHAPES[target.name]
    target.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    tokenizer = make_tokenizer(shape.context)
    if len(tokenizer) != 258:
        print(f"the tokenizer has {len(tokenizer)} tokens, not 258", file=sys.stderr)
        return 1
    pairs = texts(tokenizer)
    for seed in range(ATTEMPTS):
        model = train(pairs, seed, shape)
        if recites(model, pairs):
            model.save_pretrained(target, max_shard_size="4GB")  # one file
            tokenizer.save_pretrained(target)
            for file in target.iterdir():
                file.chmod(0o644)
            size = sum(f.stat().st_size for f in target.iterdir())
            print(f"recites {len(pairs)} of {len(pairs)} sentences exactly: {size / 1e6:.1f} MB in {time.monotonic() - started:.0f} s", flush=True)
            return 0
        print(f"seed {seed}: does not recite its sentences yet, again", flush=True)
    print(f"the model did not learn its {len(TAUGHT)} sentences in {ATTEMPTS} attempts", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
