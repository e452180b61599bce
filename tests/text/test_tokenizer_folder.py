"""Tokenizers of model folders: configuration files, EOS ids, BOS exactly once, templates, broken files."""

import json
import os

import pytest
import sentencepiece
from small_vocabularies import CHATML, byte_level, metaspace, sentencepiece_model
from tokenizers import AddedToken, Tokenizer, models, processors

from umlm.text import tokenizer_from_folder

BOS_EOS = ("<s>", "</s>", *CHATML)
TEMPLATE = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


def write(folder, **files):
    """Write JSON objects as NAME.json."""
    for name, data in files.items():
        (folder / f"{name}.json").write_text(json.dumps(data), "utf-8")


def folder_with(path, *, post_bos=False, library=None, **files):
    library = library or byte_level(BOS_EOS)
    if post_bos:
        bos = library.token_to_id("<s>")
        library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    library.save(str(path / "tokenizer.json"))
    write(path, **files)
    return tokenizer_from_folder(path)


@pytest.mark.parametrize(
    ("config", "generation", "want"),
    [
        (1, [1, 106], {1, 106}),
        (1, None, {1}),
        ([1, 2], 3, {1, 2, 3}),
        (None, None, set()),
        ("missing", "missing", set()),
    ],
)
def test_eos_ids_are_the_union_of_all_sources(tmp_path, config, generation, want):
    """T08: int, list, null and missing in config.json and generation_config.json."""
    for name, value in (("config", config), ("generation_config", generation)):
        write(tmp_path, **{name: {} if value == "missing" else {"eos_token_id": value}})
    assert folder_with(tmp_path).eos_ids == want


def test_eos_ids_of_tokenizer_template_and_text_config(tmp_path):
    """The tokenizer's own EOS, the end-of-turn token that the template writes, and a nested text_config."""
    tokenizer = folder_with(
        tmp_path,
        tokenizer_config={"eos_token": {"content": "</s>"}, "chat_template": TEMPLATE},
        config={"text_config": {"eos_token_id": 7}},
    )
    assert tokenizer.eos_ids == {7, tokenizer.token_to_id("</s>"), tokenizer.token_to_id("<|im_end|>")}


def test_end_of_turn_text_that_is_no_special_token_ends_nothing(tmp_path):
    tokenizer = folder_with(tmp_path, library=byte_level(), tokenizer_config={"chat_template": TEMPLATE})
    assert tokenizer.eos_ids == frozenset()


def test_harmony_end_closes_a_message_not_the_turn(tmp_path):
    """In gpt-oss's format <|end|> comes between messages of one turn."""
    library = byte_level(("<|channel|>", "<|end|>", "<|return|>"))
    tokenizer = folder_with(
        tmp_path, library=library, tokenizer_config={"chat_template": "<|channel|><|end|><|return|>"}
    )
    assert tokenizer.eos_ids == {tokenizer.token_to_id("<|return|>")}


def test_bad_eos_is_named(tmp_path):
    with pytest.raises(ValueError, match="eos_token_id: 'two'"):
        folder_with(tmp_path, config={"eos_token_id": "two"})


@pytest.mark.parametrize("template_bos", [True, False])
@pytest.mark.parametrize("post_bos", [True, False])
@pytest.mark.parametrize("add_bos_token", [True, False, None])
def test_bos_exactly_once(tmp_path, template_bos, post_bos, add_bos_token):
    """T10: template with and without BOS, post-processor with and without, flag true, false and absent."""
    template = TEMPLATE if template_bos else TEMPLATE.replace("{{ bos_token }}", "")
    config = {"bos_token": "<s>", "chat_template": template}
    if add_bos_token is not None:
        config["add_bos_token"] = add_bos_token
    tokenizer = folder_with(tmp_path, post_bos=post_bos, tokenizer_config=config)
    bos = tokenizer.bos_id
    asks = post_bos if add_bos_token is None else add_bos_token
    assert tokenizer.add_bos == asks
    plain = tokenizer.encode("hi", bos=False)
    assert bos not in plain
    assert tokenizer.encode("hi") == ([bos] if asks else []) + plain
    assert tokenizer.encode("hi", bos=True) == tokenizer.encode("<s>hi", bos=True) == [bos, *plain]
    assert tokenizer.encode("<s>hi") == [bos, *plain]
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "x"}])
    assert chat.count(bos) == int(template_bos)


def test_bos_asked_of_a_tokenizer_without_one(tmp_path):
    with pytest.raises(ValueError, match="no BOS token"):
        folder_with(tmp_path).encode("x", bos=True)


def test_several_prefix_tokens_and_a_suffix(tmp_path):
    """A post-processor may put two tokens in front (ChatGLM) and one behind."""
    library = byte_level(BOS_EOS)
    ids = {text: library.token_to_id(text) for text in ("<s>", "<|im_start|>", "</s>")}
    library.post_processor = processors.TemplateProcessing(
        single="<s> <|im_start|> $A </s>", special_tokens=list(ids.items())
    )
    tokenizer = folder_with(tmp_path, library=library)
    assert tokenizer.encode("hi") == library.encode("hi").ids
    assert tokenizer.encode("<s><|im_start|>hi") == library.encode("hi").ids


def test_merges_as_pairs_or_strings(tmp_path):
    """T17: both spellings of tokenizer.json give the same ids; a pair may hold a piece with a space."""
    vocabulary = {"a": 0, "b": 1, "ab": 2, " ": 3, " a": 4, " ab": 5}
    merges = {"strings": ["a b"], "pairs": [["a", "b"]], "spaces": [["a", "b"], [" ", "ab"]]}
    ids = {}
    for name, value in merges.items():
        folder = tmp_path / name
        folder.mkdir()
        Tokenizer(models.BPE(vocabulary, [])).save(str(folder / "tokenizer.json"))
        data = json.loads((folder / "tokenizer.json").read_text("utf-8"))
        data["model"]["merges"] = value
        write(folder, tokenizer=data)
        ids[name] = [tokenizer_from_folder(folder).encode(text) for text in ("ab", " ab")]
    assert ids["strings"] == ids["pairs"] == [[2], [3, 2]]
    assert ids["spaces"] == [[2], [5]]


def test_truncation_and_padding_of_the_file_are_not_applied(tmp_path):
    library = byte_level()
    library.enable_truncation(3)
    library.enable_padding(length=64)
    assert len(folder_with(tmp_path, library=library).encode("0 0 0 0 0 0")) > 3


def test_special_tokens_that_the_configuration_names(tmp_path):
    """A token of the vocabulary becomes special; one that is not there gets no id beyond the embeddings."""
    library = byte_level()
    library.add_tokens([AddedToken("</s>", special=False), AddedToken("[A]", special=False)])
    config = {"eos_token": "</s>", "pad_token": "[PAD]", "additional_special_tokens": ["[A]"]}
    tokenizer = folder_with(tmp_path, library=library, tokenizer_config=config)
    assert tokenizer.decode(tokenizer.encode("x</s>[A]")) == "x"
    assert tokenizer.token_to_id("[PAD]") is None
    assert tokenizer.vocab_size == library.get_vocab_size()


def rendered(tokenizer, **options):
    return tokenizer.render([{"role": "user", "content": "x"}], **options)


def test_places_of_chat_templates(tmp_path):
    """The configuration's entry (text or named list), chat_template.json, chat_template.jinja, additional ones."""
    assert folder_with(tmp_path).chat_template is None
    write(tmp_path, chat_template={"chat_template": "from json"})
    assert rendered(tokenizer_from_folder(tmp_path)) == "from json"
    named = [{"name": "default", "template": "listed"}, {"name": "tool_use", "template": "tools"}]
    write(tmp_path, tokenizer_config={"chat_template": named, "bos_token": "<s>"})
    assert rendered(tokenizer_from_folder(tmp_path)) == "listed"
    assert rendered(tokenizer_from_folder(tmp_path), tools=[{"name": "f"}]) == "tools"
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}file", "utf-8")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("rag", "utf-8")
    tokenizer = tokenizer_from_folder(tmp_path)
    assert rendered(tokenizer) == "<s>file"
    assert rendered(tokenizer, template_name="rag") == "rag"


def test_folder_of_links(tmp_path):
    """The hub's cache holds links to files elsewhere."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    byte_level().save(str(tmp_path / "blobs" / "0123"))
    os.symlink("../blobs/0123", tmp_path / "snapshot" / "tokenizer.json")
    assert tokenizer_from_folder(tmp_path / "snapshot").encode("0")


def test_no_tokenizer_is_one_line(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no tokenizer found \(tokenizer\.json, tokenizer\.model or tekken"):
        tokenizer_from_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b"{"),
        ("tokenizer.json", b'{"model": {}}'),
        ("tokenizer.json", b"\xff\xfe"),
        ("tokenizer.model", b"not a model"),
        ("tokenizer.model", b""),
        ("tekken.json", b"[]"),
        ("tekken.json", b'{"config": {}}'),
        ("tokenizer_config.json", b"[1]"),
        ("tokenizer_config.json", b"{"),
        ("config.json", b"\xff"),
    ],
)
def test_broken_files_are_named(tmp_path, name, content):
    if "config" in name:
        byte_level().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        tokenizer_from_folder(tmp_path)


def test_unknown_decoder_is_named(tmp_path):
    library = metaspace()
    library.save(str(tmp_path / "tokenizer.json"))
    data = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    data["decoder"] = {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}
    write(tmp_path, tokenizer=data)
    with pytest.raises(ValueError, match="decoder 'CTC' is not supported; known: ByteFallback"):
        tokenizer_from_folder(tmp_path)


def test_sentencepiece_folder(tmp_path):
    """tokenizer.model: BOS by default, tokens that the folder adds, ids of the library elsewhere."""
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model())
    processor = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model())
    size = processor.get_piece_size()
    added = {str(size): {"content": "<|im_end|>", "special": True}}
    write(tmp_path, added_tokens={"<extra>": size + 1}, tokenizer_config={"added_tokens_decoder": added})
    tokenizer = tokenizer_from_folder(tmp_path)
    text = "Hello, world! 字 aaaaaa"
    assert tokenizer.encode(text) == [processor.bos_id(), *processor.encode(text)]
    assert tokenizer.eos_ids == {processor.eos_id()}
    assert tokenizer.encode("the<|im_end|><extra>", bos=False) == [*processor.encode("the"), size, size + 1]
    assert tokenizer.decode([size, size + 1, size + 2]) == "<extra>"
    assert (tokenizer.vocab_size, tokenizer.id_to_token(size)) == (size + 2, "<|im_end|>")
    with pytest.raises(ValueError, match=f"token id {size + 2} is not in the vocabulary"):
        tokenizer.id_to_token(size + 2)
