"""A tiny model server: OpenAI's chat, completions and embeddings over HTTP, from a model that needs no GPU.

It does what the large ones do: listens at once, is not ready before it has loaded, streams token by token, counts them,
and stops when it is told to. `--fail` and `--crash-after` are for seeing what a gateway makes of one that does not.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from itertools import islice
from pathlib import Path
from typing import Any

from ngrams import ENDS, NGrams, embedding, spaced, tokens_of

TEXT = Path(__file__).with_name("stable.txt")
DEFAULT_TOKENS, MOST_TOKENS = 40, 100_000
MAX_BODY = 8 * 1024 * 1024
JSON, EVENTS = "application/json", "text/event-stream"
STATUS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}

Document = dict[str, Any]


class Refused(Exception):
    def __init__(self, status: int, what: str) -> None:
        super().__init__(what)
        self.status = status


class Request:
    def __init__(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        self.method, self.path, self.headers, self.body = method, path.partition("?")[0], headers, body

    def fields(self) -> Document:
        try:
            fields = json.loads(self.body)
        except ValueError as error:
            raise Refused(400, f"the body is not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise Refused(400, "the body must be a JSON object")
        return fields


class TinyServer:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._model: NGrams | None = None
        self._answered = 0
        self._pages: dict[str, tuple[str, Callable[..., Any]]] = {
            "/health": ("GET", self._health),
            "/v1/models": ("GET", self._models),
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/completions": ("POST", self._complete),
            "/v1/embeddings": ("POST", self._embed),
        }

    async def load(self) -> None:
        await asyncio.sleep(self._options.load_seconds)
        if self._options.fail:
            sys.exit("tiny_server: could not load the model, as --fail asks for")
        self._model = NGrams(self._options.text.read_text(encoding="utf-8"), self._options.order)
        print(f"{self._options.name} is ready", flush=True)

    # HTTP

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _read(reader)) is not None:
                await self._answer(request, writer)
        except Refused as error:
            _write(writer, error.status, _error(error))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # whoever asked has gone, and with it the reason to go on
        finally:
            writer.close()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        try:
            answer = self._page(request)
            if asyncio.iscoroutine(answer):
                answer = await answer
        except Refused as error:
            _write(writer, error.status, _error(error))
            return
        if isinstance(answer, dict):
            _write(writer, 200, answer)
            await writer.drain()
            return
        writer.write(_head(200, EVENTS, "Transfer-Encoding: chunked"))
        async for event in answer:
            data = f"data: {event}\n\n".encode()
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    def _page(self, request: Request) -> Any:
        method, page = self._pages.get(request.path, ("", None))
        if page is None:
            raise Refused(404, f"there is no {request.path}")
        if request.method != method:
            raise Refused(405, f"{request.path} takes {method}")
        if self._model is None:
            raise Refused(503, "the model is loading")
        return page(request)

    # Pages

    def _health(self, _: Request) -> Document:
        return {"status": "ok"}

    def _models(self, _: Request) -> Document:
        return {"object": "list", "data": [{"id": self._options.name, "object": "model", "owned_by": "tiny_server"}]}

    def _embed(self, request: Request) -> Document:
        given = request.fields().get("input", "")
        texts = given if isinstance(given, list) else [given]
        if not all(isinstance(text, str) for text in texts):
            raise Refused(400, "`input` must be a string or a list of strings")
        self._count()
        data = [{"object": "embedding", "index": at, "embedding": embedding(text)} for at, text in enumerate(texts)]
        used = sum(len(tokens_of(text)) for text in texts)
        usage = {"prompt_tokens": used, "total_tokens": used}
        return {"object": "list", "data": data, "model": self._options.name, "usage": usage}

    def _chat(self, request: Request) -> Any:
        fields = request.fields()
        messages = fields.get("messages")
        if not isinstance(messages, list) or not messages:
            raise Refused(400, "`messages` must be a list of at least one message")
        prompt = [token for message in messages for token in tokens_of(_said(message))]
        return self._generate(fields, prompt, Chat(self._options.name))

    def _complete(self, request: Request) -> Any:
        fields = request.fields()
        prompt = fields.get("prompt", "")
        if not isinstance(prompt, str):
            raise Refused(400, "`prompt` must be a string")
        return self._generate(fields, tokens_of(prompt), Completion(self._options.name))

    def _generate(self, fields: Document, prompt: list[str], form: "Form") -> Any:
        tokens = self._tokens(fields, prompt)
        form.end = "stop" if tokens[-1] in ENDS else "length"
        if fields.get("stream"):
            return self._stream(tokens, len(prompt), form)
        return self._whole(tokens, len(prompt), form)

    def _tokens(self, fields: Document, prompt: list[str]) -> list[str]:
        assert self._model is not None
        most = fields.get("max_completion_tokens") or fields.get("max_tokens") or DEFAULT_TOKENS
        temperature, seed = fields.get("temperature", 1.0), fields.get("seed")
        if not isinstance(most, int) or not isinstance(temperature, int | float) or not isinstance(seed, int | None):
            raise Refused(400, "`max_tokens` and `seed` must be whole numbers, and `temperature` a number")
        count = min(max(1, most), MOST_TOKENS)
        tokens = list(islice(self._model.continued(prompt, temperature, seed), count))
        # A sentence is not broken off if it can be helped, unless so many tokens were asked for.
        ends = [at for at, token in enumerate(tokens) if token in ENDS]
        asked = "max_tokens" in fields or "max_completion_tokens" in fields
        return tokens if asked or not ends else tokens[: ends[-1] + 1]

    async def _pieces(self, tokens: list[str]) -> AsyncIterator[str]:
        """As fast as it was told to be. On the way a crash may have been asked for."""
        crashes = self._options.crash_after is not None and self._answered >= self._options.crash_after
        pace_s = 1 / self._options.tokens_per_second if self._options.tokens_per_second else 0.0
        before = ""
        for at, token in enumerate(tokens):
            if crashes and at == len(tokens) // 2:
                print("tiny_server: crashes, as --crash-after asks for", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            await asyncio.sleep(pace_s)
            yield spaced(token, before)
            before = token

    async def _stream(self, tokens: list[str], prompt: int, form: "Form") -> AsyncIterator[str]:
        async for piece in self._pieces(tokens):
            yield json.dumps(form.chunk(piece, None))
        self._count()
        yield json.dumps({**form.chunk("", form.end), "usage": _usage(prompt, len(tokens))})
        yield "[DONE]"

    async def _whole(self, tokens: list[str], prompt: int, form: "Form") -> Document:
        text = "".join([piece async for piece in self._pieces(tokens)])
        self._count()
        return {**form.whole(text), "usage": _usage(prompt, len(tokens))}

    def _count(self) -> None:
        self._answered += 1


class Form:
    """How one answer is written."""

    kind = ""
    chunk_kind = ""
    end = "stop"
    """Why it went no further."""

    def __init__(self, model: str) -> None:
        self._same = {"id": f"tiny-{uuid.uuid4().hex[:12]}", "created": int(time.time()), "model": model}

    def whole(self, text: str) -> Document:
        choice = {"index": 0, "finish_reason": self.end, **self._content(text)}
        return {**self._same, "object": self.kind, "choices": [choice]}

    def chunk(self, text: str, end: str | None) -> Document:
        choice = {"index": 0, "finish_reason": end, **self._part(text)}
        return {**self._same, "object": self.chunk_kind, "choices": [choice]}

    def _content(self, text: str) -> Document:
        return {"text": text}

    def _part(self, text: str) -> Document:
        return {"text": text}


class Completion(Form):
    kind = chunk_kind = "text_completion"


class Chat(Form):
    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def _content(self, text: str) -> Document:
        return {"message": {"role": "assistant", "content": text}}

    def _part(self, text: str) -> Document:
        return {"delta": {"content": text} if text else {}}


def _said(message: Any) -> str:
    """What a message says, also where it comes in parts."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if not isinstance(content, str):
        raise Refused(400, "each message must have a `content`")
    return content


def _usage(prompt: int, completion: int) -> Document:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


async def _read(reader: asyncio.StreamReader) -> Request | None:
    """The next request; None where there is none."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    except asyncio.LimitOverrunError:
        raise Refused(400, "the headers are too long") from None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    words = first.split(" ")
    if len(words) != 3:
        raise Refused(400, "this is not HTTP")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Request(words[0], words[1], headers, await _body(reader, headers))


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        pieces = []
        while size := int((await reader.readline()).split(b";")[0] or b"0", 16):
            pieces.append(await reader.readexactly(size))
            await reader.readexactly(2)
        while (await reader.readline()).strip():
            pass
        return b"".join(pieces)
    length = headers.get("content-length", "0")
    if not length.isdigit() or int(length) > MAX_BODY:
        raise Refused(400, f"the body must have a length of at most {MAX_BODY} bytes")
    return await reader.readexactly(int(length))


def _head(status: int, content: str, more: str) -> bytes:
    return f"HTTP/1.1 {status} {STATUS[status]}\r\nContent-Type: {content}\r\n{more}\r\n\r\n".encode()


def _write(writer: asyncio.StreamWriter, status: int, document: Document) -> None:
    body = json.dumps(document).encode()
    writer.write(_head(status, JSON, f"Content-Length: {len(body)}") + body)


def _error(error: Refused) -> Document:
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return {"error": {"message": str(error), "type": kind, "param": None, "code": None}}


def _options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=int(os.environ.get("OSTLER_PORT", "8000")))
    parser.add_argument("--name", default="tiny", help="what the model is called")
    parser.add_argument("--order", type=int, default=2, help="how many words back it looks (the model's size)")
    parser.add_argument("--text", type=Path, default=TEXT, help="what it has read")
    parser.add_argument("--load-seconds", type=float, default=0.0, help="how long it loads")
    parser.add_argument("--tokens-per-second", type=float, default=0.0, help="how fast it speaks; 0: at once")
    parser.add_argument("--fail", action="store_true", help="do not load")
    parser.add_argument("--crash-after", type=int, metavar="N", help="answer N requests, and die amid the next")
    return parser.parse_args(arguments)


async def main() -> None:
    options = _options()
    tiny = TinyServer(options)
    server = await asyncio.start_server(tiny.connected, options.host, options.port)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    loading = asyncio.create_task(tiny.load())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([loading, stopping], return_when=asyncio.FIRST_COMPLETED)
    if loading.done():
        loading.result()
        await stopping
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
