"""A draft is looked up in the text, checked in one pass, and what was wrong in it is forgotten.

python docs/examples/speculative.py
"""

from __future__ import annotations

import time
from typing import Any

import attnkit as ak
from attnkit.models import Llama, PromptLookup, Tokenizer, generate, load_model, speculate

TESTS = """\
assert add(1, 1) == 2
assert add(1, 2) == 3
assert add(1, 3) == 4
assert add(1, 4) == 5
"""


def compare(model: Llama, tokenizer: Tokenizer, prompt: list[int], max_tokens: int, **fields: Any) -> dict[str, Any]:
    """Generate one text twice, token by token and with drafts, each through a cache of its own."""
    start = time.perf_counter()
    plain = list(generate(model, tokenizer, prompt, max_tokens=max_tokens, cache=model.make_cache(**fields)))
    middle = time.perf_counter()
    cache = model.make_cache(**fields)
    generation = speculate(
        model, tokenizer, prompt, max_tokens=max_tokens, draft=PromptLookup(), max_draft=5, cache=cache
    )
    drafted = list(generation)
    times = {"plain_seconds": middle - start, "seconds": time.perf_counter() - middle}
    return {"same": plain == drafted, "text": drafted, "stats": generation.stats, "cache": cache} | times


def refused_by(cache: Any, count: int) -> str:
    """Give the words with which a cache refuses to forget so many tokens."""
    try:
        cache.drop(count)
    except ak.ShapeError as error:
        return str(error)
    return ""


def main() -> None:
    model, tokenizer = load_model(backend="numpy")
    prompt = tokenizer.encode(TESTS)
    for fields in ({"layout": "paged", "page_size": 16}, {"layout": "ring", "window": 64, "max_append": 16}):
        found = compare(model, tokenizer, prompt, 32, **fields)
        stats = found["stats"]
        print(
            f"{fields['layout']}: {stats.accepted} of {stats.drafted} drafted tokens accepted, "
            f"{stats.new_tokens} tokens in {stats.passes} passes, "
            f"{found['seconds'] / found['plain_seconds']:.2f} of the time, same text: {found['same']}"
        )
    print(tokenizer.decode(found["text"]))
    print(f"what a ring refuses: {refused_by(found['cache'], 40)}")


if __name__ == "__main__":
    main()
