"""The index of prefixes: random use against whole texts, colliding hashes, pages that are used again, and refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from attnkit.cache.frames import Frames
from attnkit.cache.prefix import PrefixIndex, hash_tokens

HASHES = {"good": hash_tokens, "constant": lambda tokens: 0, "two": lambda tokens: sum(tokens) % 2}
HASH_OF_ZEROS = 0x18CC49CA5BEA08CA
TEXTS = st.lists(st.integers(0, 1), max_size=9)


@pytest.fixture(params=HASHES)
def hashed(request):
    return HASHES[request.param]


class Texts:
    """Each entered page by all tokens from the start of its text to its own end."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.pages: dict[tuple[int, ...], int] = {}

    def beginnings(self, tokens):
        """Give the text up to the end of each full page."""
        ends = range(self.page_size, len(tokens) + 1, self.page_size)
        return [tuple(tokens[:end]) for end in ends]

    def add(self, tokens, pages):
        for text, page in zip(self.beginnings(tokens), pages, strict=False):
            self.pages.setdefault(text, page)

    def match(self, tokens):
        found = []
        for text in self.beginnings(tokens):
            if text not in self.pages:
                break
            found.append(self.pages[text])
        return found

    def forget(self, page):
        start = next((text for text, entered in self.pages.items() if entered == page), None)
        gone = {text for text in self.pages if start is not None and text[: len(start)] == start}
        return {self.pages.pop(text) for text in gone}


class AgainstTexts(RuleBasedStateMachine):
    @initialize(page_size=st.integers(1, 3), hashed=st.sampled_from(sorted(HASHES)))
    def begin(self, page_size, hashed):
        self.index = PrefixIndex(page_size, HASHES[hashed])
        self.texts = Texts(page_size)
        self.seen: set[int] = set()

    @precondition(lambda self: len(self.index) < 30)
    @rule(tokens=TEXTS, first=st.integers(0, 39), own=st.integers(0, 9))
    def add(self, tokens, first, own):
        """A known beginning lies in its own pages or in copies; what is new lies in pages that are not entered."""
        others = [page for page in (*range(first, 40), *range(first)) if page not in self.texts.pages.values()]
        known = self.texts.match(tokens)[:own]
        pages = [*known, *others[: len(tokens) // self.texts.page_size - len(known)]]
        self.index.add(tokens, pages)
        self.texts.add(tokens, pages)
        self.seen.update(self.texts.pages.values())

    @rule(tokens=TEXTS, data=st.data())
    def a_page_of_another_text_is_refused(self, tokens, data):
        own = self.texts.match(tokens)
        texts = self.texts.beginnings(tokens)
        foreign = sorted(set(self.texts.pages.values()) - set(own))
        if not texts or not foreign:
            return
        pages = list(range(100, 100 + len(texts)))
        pages[data.draw(st.integers(0, len(texts) - 1))] = data.draw(st.sampled_from(foreign))
        with pytest.raises(ValueError, match="is entered for other tokens; forget it before"):
            self.index.add(tokens, pages)
        assert self.index.match(tokens) == own

    @rule(tokens=TEXTS)
    def match(self, tokens):
        assert self.index.match(tokens) == self.texts.match(tokens)

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def forget(self, data):
        page = data.draw(st.sampled_from(sorted(self.seen)))
        gone = self.index.forget(page)
        assert len(gone) == len(set(gone))
        assert gone[:1] == ([page] if gone else [])
        assert set(gone) == self.texts.forget(page)

    @invariant()
    def all_is_known(self):
        entered = set(self.texts.pages.values())
        assert len(self.index) == len(entered)
        assert {page for page in range(-1, 110) if page in self.index} == entered
        for text in self.texts.pages:
            assert self.index.match(text) == self.texts.match(text)
        self.index.check()


TestAgainstTexts = AgainstTexts.TestCase
TestAgainstTexts.settings = settings(max_examples=80, stateful_step_count=30, deadline=None, database=None)


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_large_tree_against_whole_texts(page_size, hashed) -> None:
    """Texts branch off one another at any token, pages are forgotten and entered again for others."""
    numbers = np.random.default_rng(page_size)
    index, texts = PrefixIndex(page_size, hashed), Texts(page_size)
    written, free = [[]], list(range(20_000))
    for step in range(600):
        start = written[numbers.integers(len(written))]
        tokens = [*start[: numbers.integers(len(start) + 1)], *numbers.integers(3, size=numbers.integers(20)).tolist()]
        assert index.match(tokens) == texts.match(tokens)
        known = texts.match(tokens)
        pages = [*known, *(free.pop() for _ in range(len(tokens) // page_size - len(known)))]
        index.add(tokens, pages)
        texts.add(tokens, pages)
        assert index.match(tokens) == pages
        written.append(tokens)
        if step % 5 == 4 and texts.pages:
            page = int(numbers.choice(sorted(texts.pages.values())))
            gone = index.forget(page)
            assert set(gone) == texts.forget(page)
            free += gone
    assert len(index) == len(texts.pages) > 20
    for tokens in written:
        assert index.match(tokens) == texts.match(tokens)
    index.check()


# Matching


def test_full_pages_of_the_beginning_are_found(hashed) -> None:
    index = PrefixIndex(2, hashed)
    index.add([1, 2, 3, 4, 5], [7, 8, 9])
    assert index.match([1, 2, 3, 4, 5, 6]) == [7, 8]
    assert index.match([1, 2, 3, 4]) == [7, 8]
    assert index.match([1, 2, 3, 9]) == index.match([1, 2, 3]) == index.match([1, 2]) == [7]
    assert index.match([1]) == index.match([]) == index.match([2, 1]) == index.match([3, 4]) == []
    assert [page in index for page in (6, 7, 8, 9)] == [False, True, True, False]


def test_less_than_a_page_is_not_entered() -> None:
    index = PrefixIndex(16)
    index.add(range(15), [0])
    assert len(index) == 0
    index.add([], [])
    index.add(range(16), [0])
    assert index.match(range(40)) == [0]


def test_pages_of_one_token(hashed) -> None:
    index = PrefixIndex(1, hashed)
    index.add([5, 5, 5], [2, 0, 1])
    assert index.match([5, 5, 5, 5]) == [2, 0, 1]
    assert index.match([5, 6, 5]) == [2]


def test_equal_pages_at_other_places_are_other_pages(hashed) -> None:
    index = PrefixIndex(2, hashed)
    index.add([1, 1, 1, 1], [0, 1])
    index.add([2, 2, 1, 1], [2, 3])
    assert index.match([1, 1, 1, 1]) == [0, 1]
    assert index.match([2, 2, 1, 1]) == [2, 3]


def test_a_known_beginning_keeps_its_first_pages(hashed) -> None:
    index = PrefixIndex(2, hashed)
    index.add([1, 2, 3, 4], [0, 1])
    index.add([1, 2, 3, 4, 5, 6], [4, 5, 6])
    assert index.match([1, 2, 3, 4, 5, 6]) == [0, 1, 6]
    assert [page in index for page in (4, 5, 6)] == [False, False, True]
    assert index.forget(4) == []
    assert index.forget(1) == [1, 6]


# Pages that are used again


def test_what_followed_a_forgotten_page_goes_with_it(hashed) -> None:
    index = PrefixIndex(1, hashed)
    index.add([1, 2, 3], [0, 1, 2])
    index.add([1, 2, 4], [0, 1, 3])
    index.add([1, 5], [0, 4])
    assert sorted(index.forget(1)) == [1, 2, 3]
    assert index.match([1, 2, 3]) == [0]
    assert index.match([1, 5]) == [0, 4]
    assert index.forget(1) == index.forget(2) == index.forget(99) == []
    index.check()


@pytest.mark.parametrize("text", [[8, 9], [1, 2]], ids=["another-text", "the-same-text"])
def test_a_page_number_that_is_entered_again_revives_nothing(hashed, text) -> None:
    index = PrefixIndex(2, hashed)
    index.add([1, 2, 3, 4], [0, 1])
    index.forget(0)
    index.add(text, [0])
    assert index.match([*text, 3, 4]) == [0]
    assert index.match([1, 2, 3, 4]) == ([0] if text == [1, 2] else [])
    index.add([*text, 3, 4], [0, 1])
    assert index.match([*text, 3, 4]) == [0, 1]
    index.check()


def test_a_child_page_moves_under_another_parent(hashed) -> None:
    index = PrefixIndex(1, hashed)
    index.add([1, 7], [0, 1])
    index.add([2], [2])
    assert index.forget(1) == [1]
    index.add([2, 7], [2, 1])
    assert index.match([1, 7]) == [0]
    assert index.match([2, 7]) == [2, 1]


def test_a_long_text_is_entered_and_forgotten() -> None:
    index = PrefixIndex(1)
    tokens = list(range(30_000))
    index.add(tokens, tokens)
    assert index.match(tokens) == tokens
    assert index.forget(0) == tokens
    assert len(index) == 0
    del tokens
    index.check()


# Tokens


@pytest.mark.parametrize("same", [2**63 - 1, -(2**63), 0, 49_152])
def test_tokens_of_any_integer_type_are_the_same(same) -> None:
    index = PrefixIndex(2)
    index.add([same, 3], [0])
    kinds = [np.int64(same), same, *([np.uint64(same)] if same >= 0 else [])]
    for token in kinds:
        assert index.match((token, np.uint8(3))) == [0]
        assert index.match([token, np.uint64(3)]) == [0]
    assert index.match(np.array([same, 3, 5])) == [0]
    assert index.match(np.array([same, 3, 3, 3, 3])[::2]) == [0]
    assert index.match([same ^ 1, 3]) == []


@pytest.mark.parametrize("tokens", [[1.0, 2.0], ["1", "2"], [[1, 2]], np.ones((2, 2), np.int64), np.ones(2), [None]])
def test_tokens_must_be_integers(tokens) -> None:
    index = PrefixIndex(1)
    for operation in (index.match, lambda each: index.add(each, [0, 1])):
        with pytest.raises(TypeError, match=r"tokens must be integers, got (list|ndarray)"):
            operation(tokens)
    assert len(index) == 0


@pytest.mark.parametrize("token", [2**63, -(2**63) - 1, 2**80])
def test_tokens_must_have_64_bits(token) -> None:
    with pytest.raises(ValueError, match=r"tokens must lie in -2\*\*63\.\.2\*\*63 - 1"):
        PrefixIndex(1).match([3, token])


def test_the_hash_is_the_same_in_every_process() -> None:
    assert hash_tokens(bytes(8)) == HASH_OF_ZEROS
    assert hash_tokens(bytes(16)) != HASH_OF_ZEROS


# Failures change nothing


def enter_a_copy(index):
    """Let a copy of the first page's entry stand in the tree, as a stale one would."""
    index._root.children = {5: [replace(index._entries[0])], **index._root.children}


@pytest.mark.parametrize(
    ("pages", "message"),
    [
        ([0, 1], "pages must name the 3 full pages of tokens, got 2"),
        ([0, 5, 5], r"pages must all differ, got \[0, 5, 5\]"),
        ([0, 5, -1], "pages must be 0 or more, got -1"),
        ([0, 5, 1], "page 1 is entered for other tokens"),
        ([1, 5, 6], "page 1 is entered for other tokens"),
        ([5, 6, 0], "page 0 is entered for other tokens"),
    ],
)
def test_pages_that_cannot_hold_the_text_are_refused(hashed, pages, message) -> None:
    index = PrefixIndex(2, hashed)
    index.add([1, 2, 3, 4], [0, 1])
    with pytest.raises(ValueError, match=message):
        index.add([1, 2, 8, 8, 9, 9, 9], pages)
    assert index.match([1, 2, 8, 8, 9, 9]) == [0]
    assert index.match([1, 2, 3, 4]) == [0, 1]
    assert len(index) == 2


def test_a_hash_that_fails_enters_nothing() -> None:
    def hashed(tokens):
        return 1 // int.from_bytes(tokens, "little")

    index = PrefixIndex(1, hashed)
    with pytest.raises(ZeroDivisionError):
        index.add([3, 2, 0], [0, 1, 2])
    assert len(index) == 0
    assert index.match([3, 2]) == []
    index.check()


def test_a_page_has_room_for_a_token() -> None:
    with pytest.raises(ValueError, match="page_size must be 1 or more, got 0"):
        PrefixIndex(0)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda index: index._entries.pop(1), r"the index lists pages \[0, 2\], its tree holds \[0, 1, 2\]"),
        (lambda index: index._entries.update({5: index._entries[0]}), "the index lists pages"),
        (enter_a_copy, r"its tree holds \[0, 0, 1, 1, 2, 2\]"),
        (lambda index: index._entries.update({1: index._entries[2], 2: index._entries[1]}), "or other entries"),
        (lambda index: setattr(index._entries[1], "parent", index._entries[2]), "page 1 is entered among"),
        (lambda index: setattr(index._entries[2], "tokens", index._entries[1].tokens), "page . is entered"),
        (lambda index: setattr(index._entries[2], "key", 5), "page 2 is entered"),
        (lambda index: setattr(index, "page_size", 3), "under a hash or a size that is not its own"),
    ],
    ids=["lost", "twice", "stale", "swapped", "parent", "tokens", "hash", "size"],
)
def test_check_finds_a_broken_tree(break_it, message) -> None:
    index = PrefixIndex(1)
    index.add([1, 2], [0, 1])
    index.add([1, 3], [0, 2])
    index.check()
    break_it(index)
    with pytest.raises(RuntimeError, match=message):
        index.check()


# Together with the pages of a pool


def keeping(count, page_size, hashed=hash_tokens):
    """Give pages that are kept as long as a prompt can find them, and the index that finds them."""
    frames, index = Frames(count), PrefixIndex(page_size, hashed)
    frames.keep = index.__contains__
    frames.on_evict = lambda page: frames.discard(index.forget(page))
    return frames, index


def test_a_tail_is_evicted_before_its_head() -> None:
    frames, index = keeping(4, 2)
    pages = frames.take(4)
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    index.add(tokens, pages)
    frames.give_back(pages[::-1])
    for left in (3, 2, 1, 0):
        assert len(frames.take(1)) == 1
        assert index.match(tokens) == pages[:left]


def test_evicting_a_head_frees_what_only_it_led_to() -> None:
    frames, index = keeping(4, 1)
    pages = frames.take(4)
    index.add([1, 2, 3, 4], pages)
    frames.give_back(pages[:3])
    assert (frames.kept, frames.free) == (3, 3)
    assert len(frames.take(1)) == 1
    assert (frames.kept, frames.free) == (0, 2)
    assert pages[3] not in index
    frames.give_back(pages[3:])
    assert (frames.kept, frames.free) == (0, 3)


def test_a_match_always_finds_pages_that_hold_its_tokens(hashed) -> None:
    """Sequences come, share what they match, write the rest, and go; a page that is overwritten is never found."""
    numbers = np.random.default_rng(0)
    frames, index = keeping(14, 2, hashed)
    stored: dict[int, tuple[int, ...]] = {}
    live: list[list[int]] = []
    shared = 0
    for _ in range(1500):
        tokens = numbers.integers(2, size=numbers.integers(13)).tolist()
        found = index.match(tokens)
        assert [stored[page] for page in found] == [tuple(tokens[: 2 * i + 2]) for i in range(len(found))]
        frames.share(found)
        shared += len(found)
        needed = -(-len(tokens) // 2) - len(found)
        if needed <= frames.free:
            pages = [*found, *frames.take(needed, found[-1] if found else None)]
            stored.update({page: tuple(tokens[: 2 * i + 2]) for i, page in enumerate(pages)})
            index.add(tokens, pages)
            live.append(pages)
        else:
            frames.give_back(found[::-1])
        while len(live) > 3 or (live and numbers.integers(3) == 0):
            frames.give_back(live.pop(numbers.integers(len(live)))[::-1])
        frames.check({page: sum(pages.count(page) for pages in live) for page in range(14)})
        index.check()
    assert shared > 500
