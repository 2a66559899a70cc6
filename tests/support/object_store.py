"""An S3-compatible object store on the loopback interface (moto's), which records every request."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import s3_backends
from pyarrow import fs
from werkzeug.serving import make_server

KEY, SECRET, REGION = "AKIDEXAMPLE", "object-store-secret", "us-east-1"
BUCKET = "amqp"


@dataclass(frozen=True)
class Request:
    """`span`: first requested byte and end (exclusive), if the request has a range."""

    method: str
    path: str
    span: tuple[int, int] | None


@dataclass
class Store:
    """`endpoint` is where it listens; `requests` in the order they came."""

    endpoint: str
    requests: list[Request] = field(default_factory=list)

    @property
    def options(self) -> str:
        """The query of a URI."""
        scheme, _, address = self.endpoint.partition("://")
        return f"scheme={scheme}&endpoint_override={quote(address)}&region={REGION}"

    @property
    def environment(self) -> dict[str, str]:
        """The same as AWS's variables, with the credentials."""
        return {
            "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
        }  # fmt: skip

    def uri(self, key: str, scheme: str = "s3") -> str:
        """A complete URI, with credentials and endpoint."""
        return f"{scheme}://{KEY}:{SECRET}@{BUCKET}/{key}?{self.options}"

    def files(self) -> fs.FileSystem:
        return fs.FileSystem.from_uri(self.uri("") + "&allow_bucket_creation=true")[0]

    def put(self, *files: Path, folder: str) -> None:
        """Upload files under their names."""
        store = self.files()
        for file in files:
            with store.open_output_stream(f"{BUCKET}/{folder}/{file.name}", compression=None) as out:
                out.write(file.read_bytes())

    def spans(self, name: str) -> list[tuple[int, int]]:
        """The ranges read of an object, request by request. Fails if a request has no range."""
        asked = [request for request in self.requests if request.method == "GET" and request.path.endswith(name)]
        spans = [request.span for request in asked if request.span is not None]
        assert len(spans) == len(asked), "a GET without a range"
        return spans


Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def noting(application: Application, requests: list[Request]) -> Application:
    """The application, which records each request."""

    def noted(environment: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", environment.get("HTTP_RANGE", ""))
        span = (int(asked[1]), int(asked[2]) + 1) if asked else None
        requests.append(Request(environment["REQUEST_METHOD"], environment["PATH_INFO"], span))
        return application(environment, start)

    return noted


@contextmanager
def object_store() -> Iterator[Store]:
    """A store with an empty bucket, gone when the body ends."""
    requests: list[Request] = []
    application = noting(DomainDispatcherApplication(create_backend_app), requests)
    server = make_server("127.0.0.1", 0, application, threaded=True)
    thread = threading.Thread(target=server.serve_forever, name="object store", daemon=True)
    thread.start()
    try:
        store = Store(f"http://127.0.0.1:{server.server_port}", requests)
        store.files().create_dir(BUCKET)
        yield store
    finally:
        server.shutdown()
        thread.join()
        s3_backends.reset()  # moto keeps buckets in the process, not in the server
