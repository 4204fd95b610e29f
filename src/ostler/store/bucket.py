"""A bucket of a store that speaks S3: the few things that are asked of it. Everything here blocks, but for signing.

What goes wrong there is StoreAway with what to do; a key that is not there is None.
"""

import base64
import contextlib
import io
import logging
import os
import threading
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import cache, cached_property
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import msgspec

from ostler.domain.errors import BadInput, StoreAway

SCHEME = "s3://"
PART_BYTES = 64 * 1024 * 1024
"""What is larger goes in parts of at least this, so that an upload that was cut goes on with the next one."""
MOST_PARTS = 5000
MOST_COPIED = 5 * 1024**3
"""In one request, by what S3 allows."""
LINK_S = 3600
CONNECT_S, SILENT_S, TRIES = 5, 60, 3
CONNECTIONS = 32
AT_ONCE = 1000
"""Keys of one request to delete."""
READ_AHEAD = 1024 * 1024


_asked: set[object] = set()


def is_asked() -> bool:
    """Somebody waits for a store just now."""
    return bool(_asked)


class Bucket(msgspec.Struct, frozen=True):
    """Where it is. Who may go there is said by AWS_* variables, by ~/.aws, by the machine's own role, or here."""

    name: str
    prefix: str = ""
    endpoint: str = ""
    """Of a store that is not Amazon's."""
    public_endpoint: str = ""
    """Where workers and clients find it, if that is somewhere else."""
    region: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""

    def __str__(self) -> str:
        """As it may be shown."""
        at = f" at {self.endpoint}" if self.endpoint else ""
        return SCHEME + "/".join(filter(None, (self.name, self.prefix))) + at

    __repr__ = __str__


class Head(msgspec.Struct, frozen=True):
    size: int
    tag: str
    """Another one when other bytes are put there."""
    sha256: str = ""
    """Of all of it, in hexadecimal, where the store says so."""


def read_bucket(url: str, settings: "dict[str, str] | None" = None) -> Bucket:
    """`s3://BUCKET/PREFIX`."""
    parts = urlsplit(url)
    prefix = parts.path.strip("/")
    plain = all(piece not in ("", ".", "..") for piece in prefix.split("/")) if prefix else True
    if not url.startswith(SCHEME) or not parts.netloc or parts.query or parts.fragment or not plain:
        raise BadInput(f"store: {url!r} is not a bucket; write it like s3://BUCKET/PREFIX", [("store", "not a bucket")])
    if "@" in parts.netloc:
        raise BadInput(
            "store: no key belongs in an address, which ends up in logs; give it by AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or under [s3] in ostler.toml",
            [("store", "has a secret")],
        )
    return Bucket(name=parts.netloc, prefix=prefix, **(settings or {}))


class Client:
    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._session = _session()
        self._making = threading.Lock()

    def key(self, *parts: str) -> str:
        return "/".join(filter(None, (self.bucket.prefix, *parts)))

    # Objects

    def put(self, key: str, data: bytes | IO[bytes], sha256: str) -> None:
        """Refused by a store that compares, if the bytes are not these."""
        with self._explained():
            self._client.put_object(Bucket=self.bucket.name, Key=key, Body=data, ChecksumSHA256=encoded(sha256))

    def upload(self, key: str, path: Path) -> None:
        """A large file, part by part."""
        with self._explained(), path.open("rb") as file:
            at = {"Bucket": self.bucket.name, "Key": key}
            at["UploadId"] = self._client.create_multipart_upload(**at)["UploadId"]
            parts = []
            try:
                for number, (first, end) in enumerate(spans(path.stat().st_size), 1):
                    part = _Slice(file, first, end)
                    etag = self._client.upload_part(**at, PartNumber=number, Body=part, ContentLength=end - first)
                    parts.append({"PartNumber": number, "ETag": etag["ETag"]})
                self._client.complete_multipart_upload(**at, MultipartUpload={"Parts": parts})
            except BaseException:
                with contextlib.suppress(Exception):
                    self._client.abort_multipart_upload(**at)
                raise

    def head(self, key: str) -> Head | None:
        with self._explained():
            found = self._unless_missing(self._client.head_object, Key=key, ChecksumMode="ENABLED")
            if found is None:
                return None
            said = found.get("ChecksumSHA256") if found.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT" else None
            return Head(found["ContentLength"], found["ETag"], decoded(said))

    def open(self, key: str) -> IO[bytes] | None:
        """May be sought in: what is passed over is not fetched."""
        found = self.head(key)
        return self.opened(key, found) if found is not None else None

    def opened(self, key: str, found: Head) -> IO[bytes]:
        """Refused to go on if it is not what it was when it was looked at."""
        return io.BufferedReader(_Ranged(self, key, found), READ_AHEAD)

    def get(self, key: str, first: int, end: int | None = None, tag: str = "") -> Any:
        """A stream of these bytes, of which there must be at least one."""
        span = f"bytes={first}-{'' if end is None else end - 1}"
        given = {"Range": span} | ({"IfMatch": tag} if tag else {})
        with self._explained():
            return self._client.get_object(Bucket=self.bucket.name, Key=key, **given)["Body"]

    def copy(self, source: Head, source_key: str, key: str) -> Head:
        """Refused if it is not what it was when it was looked at."""
        at: dict[str, Any] = {"Bucket": self.bucket.name, "Key": key}
        come_from = {"CopySource": {"Bucket": self.bucket.name, "Key": source_key}, "CopySourceIfMatch": source.tag}
        size = source.size
        with self._explained():
            if size <= MOST_COPIED:
                # With other metadata, or it could not be copied to where it is already.
                told = {"MetadataDirective": "REPLACE", "Metadata": {}, "ChecksumAlgorithm": "SHA256"}
                done = self._client.copy_object(**at, **come_from, **told)["CopyObjectResult"]
                return Head(size, done["ETag"], decoded(done.get("ChecksumSHA256")))
            at["UploadId"] = self._client.create_multipart_upload(**at)["UploadId"]
            parts = []
            for number, first in enumerate(range(0, size, MOST_COPIED), 1):
                part = f"bytes={first}-{min(first + MOST_COPIED, size) - 1}"
                done = self._client.upload_part_copy(**at, **come_from, PartNumber=number, CopySourceRange=part)
                parts.append({"PartNumber": number, "ETag": done["CopyPartResult"]["ETag"]})
            done = self._client.complete_multipart_upload(**at, MultipartUpload={"Parts": parts})
            return Head(size, done["ETag"])

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            with self._explained():
                self._client.delete_object(Bucket=self.bucket.name, Key=key)

    def keys(self, prefix: str) -> Iterator[tuple[str, datetime]]:
        """Those that begin so, and when they came."""
        with self._explained():
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket.name, Prefix=prefix)
            for page in pages:
                yield from ((one["Key"], one["LastModified"]) for one in page.get("Contents", ()))

    # Uploads that others bring part by part

    def begun(self, prefix: str) -> list[tuple[str, str, datetime]]:
        """Key, upload and beginning of those that are not complete, the oldest first."""
        with self._explained():
            pages = self._client.get_paginator("list_multipart_uploads")
            found = [
                (one["Key"], one["UploadId"], one["Initiated"])
                for page in pages.paginate(Bucket=self.bucket.name, Prefix=prefix)
                for one in page.get("Uploads", ())
            ]
            return sorted(found, key=lambda one: (one[2], one[1]))

    def begin(self, key: str) -> str:
        with self._explained():
            return str(self._client.create_multipart_upload(Bucket=self.bucket.name, Key=key)["UploadId"])

    def parts(self, key: str, upload: str) -> dict[int, tuple[int, str]]:
        """Size and tag of each part that has come, by its number."""
        with self._explained():
            pages = self._client.get_paginator("list_parts")
            return {
                part["PartNumber"]: (part["Size"], part["ETag"])
                for page in pages.paginate(Bucket=self.bucket.name, Key=key, UploadId=upload)
                for part in page.get("Parts", ())
            }

    def complete(self, key: str, upload: str, parts: dict[int, tuple[int, str]]) -> None:
        told = [{"PartNumber": number, "ETag": tag} for number, (_, tag) in sorted(parts.items())]
        with self._explained():
            self._client.complete_multipart_upload(
                Bucket=self.bucket.name, Key=key, UploadId=upload, MultipartUpload={"Parts": told}
            )

    def abort(self, key: str, upload: str) -> None:
        with self._explained():
            self._unless_missing(self._client.abort_multipart_upload, Key=key, UploadId=upload)

    # Addresses that are good for a while, for whoever has them

    def link(self, key: str, called: str) -> str:
        """`called`: under which name a browser saves it."""
        return self._signed("get_object", Key=key, ResponseContentDisposition=f'attachment; filename="{called}"')

    def link_to_put(self, key: str, sha256: str, size: int) -> tuple[str, dict[str, str]]:
        """For these very bytes and no others, and the headers that go with them."""
        url = self._signed("put_object", Key=key, ChecksumSHA256=encoded(sha256), ContentLength=size)
        return url, {"x-amz-checksum-sha256": encoded(sha256), "Content-Length": str(size)}

    def link_to_part(self, key: str, upload: str, number: int, size: int) -> tuple[str, dict[str, str]]:
        url = self._signed("upload_part", Key=key, UploadId=upload, PartNumber=number, ContentLength=size)
        return url, {"Content-Length": str(size)}

    def _signed(self, what: str, **given: Any) -> str:
        with self._explained():
            params = {"Bucket": self.bucket.name, **given}
            return str(self._signer.generate_presigned_url(what, Params=params, ExpiresIn=LINK_S))

    # Towards the library

    @cached_property
    def _client(self) -> Any:
        return self._made(self.bucket.endpoint)

    @cached_property
    def _signer(self) -> Any:
        other = self.bucket.public_endpoint
        return self._made(other) if other else self._client

    def _made(self, endpoint: str) -> Any:
        from botocore.config import Config

        bucket = self.bucket
        elsewhere = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        with self._explained(), self._making:  # the library's sessions are not made for several threads
            return self._session.create_client(
                "s3",
                region_name=bucket.region or os.environ.get("AWS_REGION") or None,
                endpoint_url=endpoint or None,
                aws_access_key_id=bucket.access_key_id or None,
                aws_secret_access_key=bucket.secret_access_key or None,
                config=Config(
                    signature_version="s3v4",
                    connect_timeout=CONNECT_S,
                    read_timeout=SILENT_S,
                    retries={"mode": "standard", "total_max_attempts": TRIES},
                    max_pool_connections=CONNECTIONS,
                    # Not every store that speaks S3 knows the checksums that Amazon's clients add by themselves.
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                    s3={"addressing_style": "path" if elsewhere else "auto"},
                ),
            )

    def _unless_missing(self, call: Any, **given: Any) -> Any:
        from botocore.exceptions import ClientError

        try:
            return call(Bucket=self.bucket.name, **given)
        except ClientError as error:
            if _code(error) in ("404", "NoSuchKey", "NoSuchUpload", "NotFound"):
                return None
            raise

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

        asked = object()
        _asked.add(asked)
        try:
            yield
        except NoCredentialsError:
            raise self._away(
                "there is no key for it: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or [s3] in ostler.toml"
            ) from None
        except ClientError as error:
            said = f"{_code(error)} {error.response.get('Error', {}).get('Message', '')}".strip()
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500:
                raise self._away(said) from None
            raise Refused(
                f"the store {self.bucket} refuses: {said.rstrip('.')}; its operator looks at the bucket's name, at the "
                "key, and at what that may do there"
            ) from None
        except (BotoCoreError, ValueError) as error:  # ValueError: an endpoint that is no address
            raise self._away(str(error)) from None
        finally:
            _asked.discard(asked)

    def _away(self, what: str) -> StoreAway:
        return StoreAway(
            f"the store {self.bucket} cannot be used now ({what.rstrip('.')}); its operator looks at its address, at "
            "the key and at the network, which `ostler doctor` tries, and what was to be stored is sent again later"
        )


class Refused(StoreAway):
    """The store answered, and will not: its operator looks at keys, rights and the bucket's name."""


class _Ranged(io.RawIOBase):
    """An object as a file: read as one stream, and begun again elsewhere when it is sought in."""

    def __init__(self, client: Client, key: str, found: Head) -> None:
        self._client, self._key, self._size, self._tag = client, key, found.size, found.tag
        self._at = 0
        self._body: Any = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        target = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if target != self._at:
            self._drop()
            self._at = target
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        if self._at >= self._size:
            return 0
        with self._client._explained():
            if self._body is None:
                self._body = self._client.get(self._key, self._at, tag=self._tag)
            piece = self._body.read(min(len(buffer), self._size - self._at))
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def close(self) -> None:
        self._drop()
        super().close()

    def _drop(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None


class _Slice(io.RawIOBase):
    """Some bytes of a file as a file: a part is sent again from its beginning, and is never in memory."""

    def __init__(self, file: IO[bytes], first: int, end: int) -> None:
        self._file, self._first, self._end, self._at = file, first, end, first

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = {io.SEEK_SET: self._first, io.SEEK_CUR: self._at, io.SEEK_END: self._end}[whence] + offset
        return self.tell()

    def tell(self) -> int:
        return self._at - self._first

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._at)
        piece = self._file.read(min(len(buffer), max(0, self._end - self._at)))
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


def spans(size: int) -> list[tuple[int, int]]:
    """The parts in which so many bytes go. The same for whoever goes on with an upload of the same size."""
    part = max(PART_BYTES, -(-size // MOST_PARTS))
    return [(first, min(first + part, size)) for first in range(0, size, part)]


def encoded(sha256: str) -> str:
    return base64.b64encode(bytes.fromhex(sha256)).decode()


def decoded(said: str | None) -> str:
    """Hexadecimal; "" of what is no hash of all of it, as that of an upload in parts."""
    try:
        return base64.b64decode(said or "", validate=True).hex()
    except ValueError:
        return ""


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _session() -> Any:
    try:
        import botocore.session
    except ImportError:
        raise BadInput(
            "store: a bucket needs botocore; install it into Ostler's environment: pip install botocore",
            [("store", "needs botocore")],
        ) from None
    logging.getLogger("botocore").setLevel(logging.WARNING)  # at DEBUG it tells signatures, and keys of a role
    session = botocore.session.get_session()
    session.register_component("data_loader", _loader())
    return session


@cache
def _loader() -> Any:
    """What the library reads of its own files: half a second's work, once."""
    from botocore.loaders import create_loader

    return create_loader()
