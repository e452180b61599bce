"""Tokenizer: text -> ids -> text, with what the model says about beginning and end."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from umlm.text.backend import Backend
from umlm.text.control_text import ControlText
from umlm.text.detokenizer import Detokenizer
from umlm.text.templates import ChatTemplate


class Tokenizer:
    """A vocabulary with its special tokens and chat template. Safe to use from several threads."""

    def __init__(
        self,
        backend: Backend,
        *,
        bos_id: int | None = None,
        eos_ids: Iterable[int] = (),
        prefix_ids: Sequence[int] = (),
        suffix_ids: Sequence[int] = (),
        chat_template: ChatTemplate | None = None,
    ) -> None:
        """eos_ids: every id that ends generation; prefix_ids, suffix_ids: what the model wants around raw text."""
        self.backend = backend
        self.bos_id = bos_id
        self.eos_ids = frozenset(eos_ids)
        self.special_ids = frozenset(token.id for token in backend.control)
        self.chat_template = chat_template
        self._prefix, self._suffix = list(prefix_ids), list(suffix_ids)

    @cached_property
    def vocab_size(self) -> int:
        """Highest id + 1."""
        return self.backend.vocab_size

    @property
    def add_bos(self) -> bool:
        """Whether the model asks for a BOS before raw text."""
        return self.bos_id is not None and self.bos_id in self._prefix

    def encode(self, text: str, *, bos: bool | None = None, parse_special: bool = True) -> list[int]:
        """Ids of a raw text.

        bos None: with what the model asks for around a text; True or False: with or without a BOS, nothing else.
        The BOS comes exactly once, also when the text itself begins with it. parse_special False: the text of
        special tokens is ordinary text. Raises ValueError when bos is True and the model has no BOS.
        """
        ids = self.backend.encode(_valid_unicode(text), parse_special=parse_special)
        if bos is None:
            return _after(self._prefix, ids, self.bos_id) + self._suffix
        if not bos:
            return ids
        if self.bos_id is None:
            raise ValueError("bos: this tokenizer has no BOS token; leave bos out")
        return _after([self.bos_id], ids, self.bos_id)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of ids. Bytes that are no UTF-8 become U+FFFD; ids outside the vocabulary are left out."""
        skip = self.special_ids if skip_special else frozenset()
        data = b"".join(self.token_bytes(token_id) for token_id in ids if token_id not in skip)
        return self.backend.rules.text(data)

    def detokenizer(self, *, skip_special: bool = True) -> Detokenizer:
        """A streaming decoder; its deltas joined equal decode() of all ids."""
        skip = self.special_ids if skip_special else frozenset()
        return Detokenizer(self.token_bytes, self.backend.rules, skip)

    def token_to_id(self, text: str) -> int | None:
        """Id of a token by its text in the vocabulary, or None."""
        return self.backend.token_to_id(text)

    def id_to_token(self, token_id: int) -> str:
        """Text of a token in the vocabulary. Raises ValueError for an id that it does not hold."""
        token = self.backend.id_to_token(token_id)
        if token is None:
            raise ValueError(f"token id {token_id} is not in the vocabulary; ids go from 0 to {self.vocab_size - 1}")
        return token

    def token_bytes(self, token_id: int) -> bytes:
        """True bytes of a token; empty for an id that the vocabulary does not hold."""
        return self.backend.token_bytes(token_id)

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """The prompt text of a conversation; options as in ChatTemplate.render."""
        return self._template().render(messages, **options)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> list[int]:
        """Prompt ids of a conversation; no special token is added to what the template writes.

        Text of special tokens in messages, tools and documents is encoded as ordinary text, so content cannot forge
        a turn; else the ids are those of the rendered text. Raises ValueError as ChatTemplate.render does.
        """
        template = self._template()
        chat = template.prepare(messages, tools, documents)
        stand_ins = self._control_text.stand_ins(chat)
        text = template.fill(
            self._hidden(chat, stand_ins),
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **variables,
        )
        ids: list[int] = []
        for number, (piece, forged) in enumerate(self._control_text.pieces(text, stand_ins)):
            ids += self.backend.encode(_valid_unicode(piece), parse_special=not forged, at_start=number == 0)
        return ids

    @cached_property
    def _control_text(self) -> ControlText:
        return ControlText(self.backend.control)

    def _hidden(self, chat: Any, stand_ins: Any) -> Any:
        """The conversation with the text of control tokens hidden, roles left as they are."""
        hide = self._control_text.hide
        messages = [
            {**hide(message, stand_ins, answer=message["role"] == "assistant"), "role": message["role"]}
            for message in chat.messages
        ]
        return chat._replace(
            messages=messages, tools=hide(chat.tools, stand_ins), documents=hide(chat.documents, stand_ins)
        )

    def _template(self) -> ChatTemplate:
        if self.chat_template is None:
            raise ValueError(
                "this model has no chat template; set tokenizer.chat_template, or send a raw prompt instead of messages"
            )
        return self.chat_template


def _after(prefix: list[int], ids: list[int], bos_id: int | None) -> list[int]:
    """prefix + ids, where nothing is put twice: neither the whole prefix nor a BOS."""
    if ids[: len(prefix)] == prefix:
        return ids
    if bos_id is not None and prefix[-1:] == [bos_id] and ids[:1] == [bos_id]:
        return prefix + ids[1:]
    return prefix + ids


def _valid_unicode(text: str) -> str:
    """The text with lone surrogates, which no tokenizer can encode, replaced."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
