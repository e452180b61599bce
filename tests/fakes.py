"""Stand-ins that behave exactly: a byte tokenizer, and a model whose next token is a function of what it reads.

The scripted model reads a request's tokens back from pages, through slots and page tables as real attention does.
So a wrong slot, position, page or boundary gives a wrong token.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Mapping, Sequence

import mlx.core as mx
import numpy as np

from umlm.cache.batch import Batch
from umlm.cache.pool import PagePool
from umlm.engine.engine import Engine
from umlm.engine.output import Clock
from umlm.engine.runner import Runner
from umlm.engine.scheduler import Scheduler

BOS, EOS, VOCAB = 256, 257, 258


class ByteDetokenizer:
    """Shows a character when its last byte has come."""

    def __init__(self, skip: frozenset[int]) -> None:
        self._skip = skip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_id: int) -> str:
        return "" if token_id in self._skip else self._decoder.decode(bytes([token_id]))

    def finish(self) -> str:
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


class ByteTokenizer:
    """One token per UTF-8 byte, then <s> and </s>; obeys the contract of text/tokenizer.py."""

    vocab_size = VOCAB
    bos_id = BOS
    eos_ids = frozenset({EOS})
    special_ids = frozenset({BOS, EOS})
    chat_template = None
    add_bos = False

    def encode(self, text: str, *, bos: bool | None = None, parse_special: bool = True) -> list[int]:
        ids = [BOS] if bos else []
        return ids + list(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        if skip_special:
            return bytes(token for token in ids if token not in self.special_ids).decode(errors="replace")
        return "".join(self.token_bytes(token).decode(errors="replace") for token in ids)

    def token_to_id(self, text: str) -> int | None:
        special = {"<s>": BOS, "</s>": EOS}
        return special.get(text, text.encode()[0] if len(text.encode()) == 1 else None)

    def id_to_token(self, token_id: int) -> str:
        return {BOS: "<s>", EOS: "</s>"}.get(token_id) or chr(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        return {BOS: b"<s>", EOS: b"</s>"}.get(token_id) or bytes([token_id])

    def detokenizer(self, *, skip_special: bool = True) -> ByteDetokenizer:
        return ByteDetokenizer(self.special_ids if skip_special else frozenset())


class PieceTokenizer(ByteTokenizer):
    """A byte tokenizer with whole strings as tokens 300, 301, ...: tokens that end inside a stop string."""

    def __init__(self, pieces: Sequence[str | bytes]) -> None:
        self.pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self.vocab_size = 300 + len(pieces)

    def detokenizer(self, *, skip_special: bool = True) -> ByteDetokenizer:
        return _PieceDetokenizer(self.pieces, self.special_ids)


class _PieceDetokenizer(ByteDetokenizer):
    def __init__(self, pieces: Sequence[bytes], skip: frozenset[int]) -> None:
        super().__init__(skip)
        self._pieces = pieces

    def add(self, token_id: int) -> str:
        return self._decoder.decode(self._pieces[token_id - 300]) if token_id >= 300 else super().add(token_id)


class TokenStore:
    """Pages that hold the tokens themselves instead of keys and values."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.slots = np.full(num_pages * page_size, -1, np.int64)

    def states(self, batch: Batch) -> list[tuple[TokenStore, Batch]]:
        return [(self, batch)]

    def read(self, pages: Sequence[int], length: int) -> list[int]:
        """The first `length` tokens that lie in the pages."""
        offsets = np.arange(length)
        table = np.asarray(pages)[offsets // self.page_size]
        return self.slots[table * self.page_size + offsets % self.page_size].tolist()


class ScriptedModel:
    """logits(all tokens of the request up to a place) -> float [vocab], for every place asked for."""

    def __init__(self, logits: Callable[[list[int]], np.ndarray]) -> None:
        self.logits = logits
        self.steps: list[list[int]] = []  # how many tokens each request had in each step

    def __call__(self, tokens: mx.array, states: Sequence[tuple[TokenStore, Batch]], at: mx.array) -> mx.array:
        store, batch = states[0]
        self.steps.append(np.diff(batch.starts).tolist())
        slots, positions = np.asarray(batch.slots), np.asarray(batch.positions)
        assert len(set(slots.tolist())) == len(slots), "two tokens share a slot"
        store.slots[slots] = np.asarray(tokens)[0]
        rows = []
        for place in np.asarray(at).tolist():
            request = int(np.searchsorted(batch.starts, place, side="right")) - 1
            assert positions[place] + 1 == batch.contexts[request] + place + 1 - batch.starts[request + 1]
            rows.append(self.logits(store.read(batch.page_table[request], int(positions[place]) + 1)))
        return mx.array(np.stack(rows).astype(np.float32))


def one_hot(token: int, vocab: int = VOCAB) -> np.ndarray:
    """Logits that leave no doubt."""
    logits = np.zeros(vocab)
    logits[token] = 10
    return logits


def hashed(context: list[int], vocab: int = VOCAB) -> np.ndarray:
    """A byte that depends on every token before it and on their order."""
    state = 7
    for token in context:
        state = (state * 1_000_003 + token + 1) % 2**61
    return one_hot(state % 256, vocab)


def follow(script: Mapping[Sequence[int], Sequence[int]], vocab: int = VOCAB) -> Callable[[list[int]], np.ndarray]:
    """Continue each prompt with its script, then with EOS; no prompt is the beginning of another."""

    def logits(context: list[int]) -> np.ndarray:
        for prompt, answer in script.items():
            if context[: len(prompt)] == list(prompt):
                place = len(context) - len(prompt)
                return one_hot(answer[place] if place < len(answer) else EOS, vocab)
        raise AssertionError(f"no script for {context}")

    return logits


def scripted_engine(
    logits: Callable[[list[int]], np.ndarray] = hashed,
    *,
    num_pages: int = 64,
    page_size: int = 4,
    context: int = 200,
    tokenizer: ByteTokenizer | None = None,
    clock: Clock = time.perf_counter,
    **limits: int,
) -> Engine:
    """An engine whose model is scripted, everything else real; engine.runner.model is the ScriptedModel."""
    tokenizer = tokenizer or ByteTokenizer()
    runner = Runner(ScriptedModel(logits), TokenStore(num_pages, page_size))
    scheduler = Scheduler(PagePool(num_pages, page_size), **limits)
    return Engine(runner, scheduler, tokenizer, context=context, vocab_size=tokenizer.vocab_size, clock=clock)
