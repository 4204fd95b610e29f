"""A collector of traces, as far as a test needs one: takes OTLP over HTTP, and keeps the spans."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    def __init__(self) -> None:
        self.status = 200
        self.services: set[str] = set()
        self._spans: list[Span] = []
        self._grown = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if collector.status == 200:
                    collector.take(self.path, body)
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, path: str, body: bytes) -> None:
        assert path == "/v1/traces"
        request = ExportTraceServiceRequest.FromString(body)
        with self._grown:
            for resource in request.resource_spans:
                named = {one.key: one.value.string_value for one in resource.resource.attributes}
                self.services.add(named["service.name"])
                self._spans += [span for scope in resource.scope_spans for span in scope.spans]
            self._grown.notify_all()

    def spans_about(self, job_id: str, at_least: int, timeout_s: float = 60.0) -> list[Span]:
        """The spans that name this job, as soon as there are so many."""

        def found() -> list[Span]:
            return [span for span in self._spans if attribute(span, "ostler.job.id") == job_id]

        with self._grown:
            assert self._grown.wait_for(lambda: len(found()) >= at_least, timeout_s), [one.name for one in self._spans]
            return found()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def attribute(span: Span, name: str) -> str | int | float | None:
    for one in span.attributes:
        if one.key == name:
            kind = one.value.WhichOneof("value")
            found: str | int | float = getattr(one.value, kind)
            return found
    return None


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    try:
        yield collector
    finally:
        collector.close()
