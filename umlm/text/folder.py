"""The tokenizer of a model folder in Hugging Face's layout.

Only files with fixed names inside the folder are read; a symbolic link is followed, as the hub's cache is made of
them. Nothing in the folder is executed.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from umlm.text.backend import Backend, TokenizersBackend, read_tokenizer_json
from umlm.text.eos import end_of_turn_ids, flatten_ids
from umlm.text.sentencepiece_model import AddedToken, read_sentencepiece
from umlm.text.tekken import read_tekken
from umlm.text.templates import ChatTemplate
from umlm.text.tokenizer import Tokenizer

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def tokenizer_from_folder(path: str | Path) -> Tokenizer:
    """Read tokenizer.json, else tokenizer.model, else tekken.json, with the configuration files beside it.

    Raises FileNotFoundError when none of them is there and ValueError for a file that cannot be read.
    """
    folder = Path(path)
    config = {**_read_object(folder / "special_tokens_map.json"), **_read_object(folder / "tokenizer_config.json")}
    names = {name: _text(config[name]) for name in _SPECIAL_NAMES if config.get(name) is not None}
    backend, names = _read_vocabulary(folder, config, names)
    template = _chat_template(folder, config, names)
    bos_id = backend.token_to_id(names["bos_token"]) if "bos_token" in names else None
    prefix, suffix = _surroundings(backend, config, names)
    return Tokenizer(
        backend,
        bos_id=bos_id,
        eos_ids=_eos_ids(folder, backend, names, template),
        prefix_ids=prefix,
        suffix_ids=suffix,
        chat_template=template,
    )


def _read_vocabulary(folder: Path, config: Mapping[str, Any], names: dict[str, str]) -> tuple[Backend, dict[str, str]]:
    """The vocabulary, and the texts of the named special tokens (sentencepiece and tekken have their own)."""
    if (folder / "tokenizer.json").is_file():
        fast = read_tokenizer_json(folder / "tokenizer.json")
        # A named token that the vocabulary lacks would get an id beyond the model's embeddings.
        fast.add_special_tokens([text for text in _special_texts(config, names) if fast.token_to_id(text) is not None])
        return TokenizersBackend(fast, clean_up=bool(config.get("clean_up_tokenization_spaces"))), names
    own = {"bos_token": "<s>", "eos_token": "</s>", **names}
    models = [folder / "tokenizer.model", *sorted(folder.glob("tokenizer.model.v*")), folder / "spiece.model"]
    for model in filter(Path.is_file, models):
        return read_sentencepiece(model, _added_tokens(folder, config)), own
    if (folder / "tekken.json").is_file():
        return read_tekken(folder / "tekken.json"), own
    raise FileNotFoundError(
        f"{folder}: no tokenizer found (tokenizer.json, tokenizer.model or tekken.json); download the whole model"
    )


def _special_texts(config: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    extra = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
    extra = list(extra.values()) if isinstance(extra, dict) else extra
    return [*names.values(), *map(_text, extra)]


def _added_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, AddedToken]:
    """Tokens that the folder adds to a sentencepiece vocabulary."""
    added = {text: AddedToken(i, False) for text, i in _read_object(folder / "added_tokens.json").items()}
    for token_id, token in (config.get("added_tokens_decoder") or {}).items():
        added[_text(token)] = AddedToken(int(token_id), bool(token.get("special")))
    return added


def _surroundings(backend: Backend, config: Mapping[str, Any], names: Mapping[str, str]) -> tuple[list[int], list[int]]:
    """Ids that the model wants before and after a raw text: its post-processor's, unless the configuration says."""
    fast = isinstance(backend, TokenizersBackend)
    prefix = list(backend.prefix_ids) if isinstance(backend, TokenizersBackend) else []
    suffix = list(backend.suffix_ids) if isinstance(backend, TokenizersBackend) else []
    # PreTrainedTokenizerFast leaves the post-processor as it is, whatever the configuration says.
    asks = {} if config.get("tokenizer_class") == "PreTrainedTokenizerFast" else config
    default_bos = None if fast else True
    prefix = _with_or_without(prefix, asks.get("add_bos_token", default_bos), backend, names.get("bos_token"))
    suffix = _with_or_without(suffix, asks.get("add_eos_token"), backend, names.get("eos_token"))
    return prefix, suffix


def _with_or_without(ids: list[int], wanted: bool | None, backend: Backend, text: str | None) -> list[int]:
    token_id = backend.token_to_id(text) if text is not None else None
    if wanted is None or token_id is None:
        return ids
    others = [other for other in ids if other != token_id]
    return [token_id, *others] if wanted else others


def _eos_ids(folder: Path, backend: Backend, names: Mapping[str, str], template: ChatTemplate | None) -> set[int]:
    """Union of what config.json, generation_config.json, the tokenizer and the chat template say."""
    config = _read_object(folder / "config.json")
    text_config = config.get("text_config") or {}
    generation = _read_object(folder / "generation_config.json")
    ids = flatten_ids(*(source.get("eos_token_id") for source in (config, text_config, generation)))
    if "eos_token" in names:
        ids |= flatten_ids(backend.token_to_id(names["eos_token"]))
    if template is not None:
        ids |= set(end_of_turn_ids(backend, template.sources.values()))
    return ids


def _chat_template(folder: Path, config: Mapping[str, Any], names: Mapping[str, str]) -> ChatTemplate | None:
    """The chat templates of a folder: separate files win over the configuration's entry."""
    found = _read_object(folder / "chat_template.json").get("chat_template")
    sources = {**_named(found), **_named(config.get("chat_template"))}
    if (folder / "chat_template.jinja").is_file():
        sources["default"] = _read_text(folder / "chat_template.jinja")
    for extra in sorted(folder.glob("additional_chat_templates/*.jinja")):
        sources[extra.stem] = _read_text(extra)
    variables = {**names, "additional_special_tokens": config.get("additional_special_tokens") or []}
    return ChatTemplate(sources, variables=variables) if sources else None


def _named(entry: Any) -> dict[str, str]:
    """A configuration's chat_template entry: one text, or a list of named ones."""
    if entry is None:
        return {}
    if isinstance(entry, list):
        return {item["name"]: item["template"] for item in entry}
    return dict(entry) if isinstance(entry, dict) else {"default": str(entry)}


def _text(token: Any) -> str:
    """The text of a token entry: a string, or an object with `content`."""
    return token["content"] if isinstance(token, dict) else str(token)


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON object; empty when the file is not there."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(_read_text(path))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}); download the file again") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path}: a JSON object is needed, not a {type(data).__name__}")
    return data


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error}); download the file again") from None
