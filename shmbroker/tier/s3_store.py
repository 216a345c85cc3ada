"""An S3-compatible object store as the remote store, by boto3 (the extra `s3`).

Credentials are boto3's own affair: its environment variables, files and instance roles. A segment
is one PUT of at most 2 GiB, so there are no parts of an upload that could be left behind; boto3
tries each call three times, with timeouts, before it counts as failed.
"""

import io
from collections.abc import Iterable, Iterator
from email.utils import parsedate_to_datetime
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from shmbroker.tier.object_store import MissingFault, StoreFault, unreadable

CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 30
CONNECTIONS_MAX = 32
"""One for each thread that may be at work."""
KEYS_MAX = 1000
"""The most keys in one listing, or one deletion, as S3 has it."""

_MISSING = ("NoSuchKey", "404", "NotFound")


class _BehindEnd(StoreFault):
    """The object has nothing of that range; an empty one has no range at all."""


class _UnmetFault(StoreFault):
    """The object is not as the condition says, or another PUT is under way."""


_KINDS = {
    "InvalidRange": _BehindEnd,
    "PreconditionFailed": _UnmetFault,
    "ConditionalRequestConflict": _UnmetFault,
}


class _Source(io.FileIO):
    """A file that is stored. boto3 tells that it can't be read as it tells a connection's fault."""

    fault: OSError | None = None

    def readinto(self, buffer: Any, /) -> int | None:
        try:
            return super().readinto(buffer)
        except OSError as error:
            self.fault = error
            raise


class S3Store:
    """Objects of a bucket whose keys begin with `prefix`."""

    def __init__(
        self, bucket: str, prefix: str, endpoint: str | None = None, region: str | None = None
    ) -> None:
        self.bucket = bucket
        self.prefix = f"{prefix}/" if prefix else ""
        self._client = boto3.session.Session().client(
            "s3",
            endpoint_url=endpoint,
            region_name=region,
            config=Config(
                connect_timeout=CONNECT_TIMEOUT_S,
                read_timeout=READ_TIMEOUT_S,
                max_pool_connections=CONNECTIONS_MAX,
                retries={"mode": "standard", "total_max_attempts": 3},
                # Checksums in trailers are more than many compatible stores understand.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                # A bucket's name in the host needs a name server that plays along.
                s3={"addressing_style": "path"} if endpoint else {},
            ),
        )

    def _call(self, name: str, what: str, **arguments: Any) -> Any:
        try:
            return getattr(self._client, name)(Bucket=self.bucket, **arguments)
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code")
            if code in _MISSING:
                raise MissingFault(f"there is no s3://{self.bucket}/{what}") from error
            raise _KINDS.get(code, StoreFault)(f"s3://{self.bucket}/{what}: {error}") from error
        except (BotoCoreError, OSError) as error:
            raise StoreFault(f"s3://{self.bucket}/{what}: {error}") from error

    def put_file(self, key: str, path: str, size: int) -> None:
        try:
            file = _Source(path)
        except OSError as error:
            raise unreadable(path, error) from error
        key = self.prefix + key
        with io.BufferedReader(file) as body:
            try:
                self._call("put_object", key, Key=key, Body=body, ContentLength=size)
            except StoreFault:
                if file.fault is not None:
                    raise unreadable(path, file.fault) from file.fault
                raise

    def put(self, key: str, data: bytes) -> None:
        key = self.prefix + key
        self._call("put_object", key, Key=key, Body=io.BytesIO(data), ContentLength=len(data))

    def put_if(self, key: str, data: bytes, tag: str | None) -> str | None:
        """Store it if the object there has this tag, None: if there is none. Its new tag; None if
        it is otherwise."""
        key = self.prefix + key
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        try:
            answer = self._call("put_object", key, Key=key, Body=data, **condition)
        except (_UnmetFault, MissingFault):
            return None
        found: str = answer["ETag"]
        return found

    def look(self, key: str) -> tuple[bytes, str, float]:
        """A small object, its tag, and its age in seconds by the store's clock."""
        key = self.prefix + key
        answer = self._call("get_object", key, Key=key)
        try:
            data: bytes = answer["Body"].read()
        except (BotoCoreError, OSError) as error:
            raise StoreFault(f"s3://{self.bucket}/{key}: {error}") from error
        now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
        return data, answer["ETag"], (now - answer["LastModified"]).total_seconds()

    def get(self, key: str, start: int = 0, length: int = -1) -> bytes:
        key = self.prefix + key
        if not length:
            return b""
        arguments = {}
        if start or length >= 0:
            end = start + length - 1 if length >= 0 else ""
            arguments["Range"] = f"bytes={start}-{end}"
        try:
            answer = self._call("get_object", key, Key=key, **arguments)
        except _BehindEnd:
            return b""
        try:
            data: bytes = answer["Body"].read()
        except (BotoCoreError, OSError) as error:
            raise StoreFault(f"s3://{self.bucket}/{key}: {error}") from error
        if answer["ContentLength"] != len(data):
            raise StoreFault(f"s3://{self.bucket}/{key}: the answer ended early")
        return data

    def _pages(self, prefix: str, **arguments: Any) -> Iterator[Any]:
        arguments |= {"Prefix": self.prefix + prefix, "MaxKeys": KEYS_MAX}
        while True:
            page = self._call("list_objects_v2", arguments["Prefix"], **arguments)
            yield page
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]

    def list_objects(self, prefix: str) -> Iterator[tuple[str, int]]:
        for page in self._pages(prefix):
            for found in page.get("Contents", ()):
                yield found["Key"][len(self.prefix) :], found["Size"]

    def list_directories(self, prefix: str) -> Iterator[str]:
        for page in self._pages(prefix, Delimiter="/"):
            for found in page.get("CommonPrefixes", ()):
                yield found["Prefix"][len(self.prefix) + len(prefix) :].rstrip("/")

    def delete(self, keys: Iterable[str]) -> None:
        names = [{"Key": self.prefix + key} for key in keys]
        for first in range(0, len(names), KEYS_MAX):
            some = names[first : first + KEYS_MAX]
            answer = self._call(
                "delete_objects", some[0]["Key"], Delete={"Objects": some, "Quiet": True}
            )
            if errors := answer.get("Errors"):
                raise StoreFault(f"can't delete s3://{self.bucket}/{errors[0]['Key']}: {errors[0]}")

    def sweep(self, prefix: str) -> None:
        """An interrupted PUT leaves nothing."""
