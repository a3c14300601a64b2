"""Eight continuations of one prompt share its pages.

python docs/examples/prefix_reuse.py
"""

from __future__ import annotations

from typing import Any, NamedTuple

from attnkit.models import Llama, load_model, prefill, sampler

STORY = """\
The lighthouse on the northern cape was built by three brothers who had never seen the sea. They came from a village
in the mountains, where their father had cut stone for bridges, and they brought his tools with them in a cart. In the
first summer they laid the foundation, a ring of granite blocks, each as heavy as an ox, and fitted them so well that
no mortar was needed. In the second summer the tower rose as high as a church. The fishermen of the cape, who had
laughed at the cart and at the brothers' boots, now rowed over in the evenings to watch. In the third summer a storm
took the scaffold and everything on it, and the youngest brother, who had gone up to save the ropes, was found the
next morning asleep on the highest course of stone, with the ropes coiled under his head. The lamp was lit on the
first night of October. It burned whale oil then, and a boy had to turn the shutter by hand, four turns every minute,
from dusk to dawn. The brothers stayed. The eldest kept the lamp, the second kept the books, and the youngest, who
said that he had slept enough up there for one life, opened an inn at the foot of the tower. He hung the ropes above
the door. For sixty years no ship was lost on the cape while the lamp was burning, and in all that time it went out
only once. What happened on that night is told in many ways. The book of the second brother, in which every barrel of
oil and every visit of the inspector is written down in the same small hand, has for that date one line only, and the
ink is smeared, as if the page had been wet. It says that the oil was good, that the shutter was in order, and that
the boy was not to blame. The people of the cape say that on that night"""


class Shared(NamedTuple):
    """What was held when, in bytes, and what each sequence came to."""

    after_prompt: int
    after_forks: int
    after_texts: int
    apart: int
    texts: list[list[int]]
    untouched: bool
    found: int


def continue_together(model: Llama, prompt: list[int], count: int, new_tokens: int) -> Shared:
    cache: Any = model.make_cache(layout="paged", page_size=16)
    logits = prefill(model, prompt, cache)
    held = [cache.pool.used_bytes]
    before = cache[-1].read()

    for _ in range(count - 1):
        cache.fork(0)  # a page table and no bytes
    held.append(cache.pool.used_bytes)

    choosers = [sampler(model, 0.8, seed) for seed in range(count)]
    texts = [[choose(logits)] for choose in choosers]
    for _ in range(new_tokens - 1):
        logits = model.forward([text[-1:] for text in texts], cache)  # writes into a shared page copy it first
        for text, choose, row in zip(texts, choosers, logits, strict=True):
            text.append(choose(row))
    held.append(cache.pool.used_bytes)

    now = [array[:, :, : len(prompt)] for array in cache[-1].read()]
    untouched = all(bool((old == new).all()) for old, new in zip(before, now, strict=True))
    apart = cache.config.model_copy(update={"batch_size": count}).bytes_for(len(prompt) + new_tokens - 1)
    cache.remember(0, prompt)
    return Shared(*held, apart, texts, untouched, cache.match_prefix([*prompt, *texts[0]]))


def alone(model: Llama, prompt: list[int], text: list[int], seed: int) -> list[int]:
    """Give the tokens that are drawn after a prompt and the beginnings of its text where there is no cache at all."""
    hidden = model.hidden([*prompt, *text[:-1]])[len(prompt) - 1 :]
    choose = sampler(model, 0.8, seed)
    return [choose(row[None]) for row in model.logits(hidden)]


def main() -> None:
    model, tokenizer = load_model(backend="numpy")
    prompt = tokenizer.encode(STORY)[-400:]
    shared = continue_together(model, prompt, 8, 12)
    print(f"a prompt of {len(prompt)} tokens holds {shared.after_prompt:,} bytes")
    print(f"7 forks of it later it is {shared.after_forks:,}, and after 8 texts of 12 tokens {shared.after_texts:,}")
    print(f"8 caches apart would hold {shared.apart:,}, {shared.apart / shared.after_texts:.1f} times as many")
    for text in shared.texts:
        print(f"  ...{tokenizer.decode(text)!r}")
    print(f"the prompt is what it was in each of them: {shared.untouched}")
    print(f"the last text is the same without a cache: {alone(model, prompt, shared.texts[7], 7) == shared.texts[7]}")
    print(f"another prompt that begins like the first text finds {shared.found} of its tokens computed")


if __name__ == "__main__":
    main()
