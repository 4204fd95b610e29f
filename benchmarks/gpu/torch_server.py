"""A language model in PyTorch behind OpenAI's chat API: real weights on a real GPU, though random ones.

`torch_server.py --port P --gib 80 --seed 1`: a byte-level decoder with as many layers as it takes to fill so much. Its
text means nothing; what it costs to load, to hold and to run is that of a model of its size.
"""

import argparse
import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from holding import used_mib
from torch.nn import functional

WIDTH, HEADS, WINDOW, BYTES = 8192, 64, 256, 256
LAYER_BYTES = 12 * WIDTH * WIDTH * 2
GIB = 2**30


class Decoder:
    """Layers of attention and a perceptron, in bfloat16."""

    def __init__(self, gib: float, seed: int) -> None:
        torch.manual_seed(seed)
        count = max(1, round(gib * GIB / LAYER_BYTES))
        self.embedding = self._weights(BYTES, WIDTH)
        self.layers = [
            (
                self._weights(3 * WIDTH, WIDTH),
                self._weights(WIDTH, WIDTH),
                self._weights(4 * WIDTH, WIDTH),
                self._weights(WIDTH, 4 * WIDTH),
            )
            for _ in range(count)
        ]
        torch.cuda.synchronize()

    def _weights(self, rows: int, columns: int) -> torch.Tensor:
        scale = 1 / math.sqrt(columns)
        return torch.empty(rows, columns, dtype=torch.bfloat16, device="cuda").normal_(std=scale)

    @torch.inference_mode()
    def next_byte(self, text: bytes) -> int:
        tokens = torch.tensor(list(text[-WINDOW:]) or [32], device="cuda")
        x = self.embedding[tokens]
        for into, out, up, down in self.layers:
            parts = functional.linear(functional.layer_norm(x, (WIDTH,)), into).view(len(tokens), 3, HEADS, -1)
            query, key, value = parts.permute(1, 2, 0, 3)
            seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + functional.linear(seen.transpose(0, 1).reshape(len(tokens), WIDTH), out)
            x = x + functional.linear(functional.gelu(functional.linear(functional.layer_norm(x, (WIDTH,)), up)), down)
        logits = functional.linear(functional.layer_norm(x[-1], (WIDTH,)), self.embedding)
        return 32 + int(logits[32:127].argmax())  # printable


class Server(ThreadingHTTPServer):
    daemon_threads = True
    model: Decoder | None = None
    name = ""
    turn = threading.Lock()

    def words(self, prompt: bytes, count: int) -> Iterator[str]:
        assert self.model is not None
        for _ in range(count):
            with self.turn:
                byte = self.model.next_byte(prompt)
            prompt += bytes([byte])
            yield chr(byte)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        ready = self.server.model is not None
        self._answer(200 if ready else 503, {"status": "ok" if ready else "loading"})

    def do_POST(self) -> None:
        fields = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = " ".join(str(message["content"]) for message in fields["messages"]).encode()
        words = self.server.words(prompt, int(fields.get("max_tokens", 16)))
        if fields.get("stream"):
            self._stream(words)
            return
        text = "".join(words)
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(text)}
        self._answer(200, {"object": "chat.completion", "model": self.server.name, "choices": [choice], "usage": usage})

    def _stream(self, words: Iterator[str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for word in words:
            choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
            chunk = {"object": "chat.completion.chunk", "model": self.server.name, "choices": [choice]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _answer(self, status: int, document: dict[str, object]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--gib", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="torch")
    parser.add_argument("--diary", required=True, help="a file that gets a line of JSON for each load")
    options = parser.parse_args()
    before, begun = used_mib(), time.time()
    server = Server(("127.0.0.1", options.port), Handler)
    server.name = options.name
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.model = Decoder(options.gib, options.seed)
    line = {"name": options.name, "pid": os.getpid(), "before_mib": before, "begun": begun, "ready": time.time()}
    with open(options.diary, "a") as diary:
        diary.write(json.dumps({**line, "after_mib": used_mib()}) + "\n")
    threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
