"""The fleet's book in a Lease: one small object that all nodes share, changed under its resourceVersion alone.

The book is the text of an annotation, as JSON; a long one is packed, as annotations may have 256 KiB in all. The clock
is the API server's own, as its answers tell it.

Source  k8s.io/apimachinery/pkg/api/validation/objectmeta.go, TotalAnnotationSizeLimitB
"""

import base64
import binascii
import zlib
from typing import Final

import msgspec

from gpuguard.actuators.kubernetes.node import Metadata
from gpuguard.errors import ActionDeferred, ActionRefused, ReadFailed, ReadRefused
from gpuguard.ports import LedgerPage
from gpuguard.web.kubernetes import AlreadyThere, Api, Conflict, NotThere, path_of, read

NAME: Final = "gpuguard-drain-budget"
BOOK: Final = "gpuguard.io/drain-budget"
# A longer one is packed; some 700 entries.
PLAIN_MOST: Final = 100_000
# What an unpacked book may have; 4,096 entries have 0.6 MB.
BOOK_MOST: Final = 8 << 20
PACKED: Final = "zlib:"
NO_CLOCK: Final = "the API server's answers have no Date: the fleet's book needs its clock"


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A Lease, as far as it is looked at here."""

    metadata: Metadata


class LeaseLedger:
    """The book of one cluster."""

    name = "lease"

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self.anew = f"`kubectl -n {namespace} delete lease {NAME}`"
        self._folder = path_of("apis", "coordination.k8s.io", "v1", "namespaces", namespace, "leases")

    def read(self, until: float) -> LedgerPage:
        """The book as it is, an empty one where there is none yet.

        Raises  ReadFailed; ReadRefused where a right is missing
        """
        try:
            answer = self._api.ask("GET", f"{self._folder}/{NAME}", until)
        except NotThere:
            return LedgerPage(version="", text=b"", utc=self._now(until))
        except (ActionDeferred, ActionRefused) as error:
            raise _failed("the fleet's book cannot be read", error) from error
        if answer.utc is None:
            raise ReadFailed(NO_CLOCK)
        try:
            lease = read(answer, Lease)
            text = _unpacked((lease.metadata.annotations or {}).get(BOOK, ""))
        except (ActionDeferred, ReadFailed) as error:
            raise ReadFailed(
                f"the fleet's book in the Lease {self._namespace}/{NAME} is not understood: {error}; to have an empty "
                f"one, {self.anew}: what stands is seen at the Nodes"
            ) from error
        return LedgerPage(version=lease.metadata.resource_version, text=text, utc=answer.utc)

    def write(self, page: LedgerPage, text: bytes, until: float) -> bool:
        """The book is `text`, or somebody was faster and nothing was written.

        Raises  ReadFailed; then it may have been written or not. ReadRefused where a right or the namespace is missing
        """
        annotations = {BOOK: _packed(text)}
        try:
            if not page.version:
                metadata = {"name": NAME, "namespace": self._namespace, "annotations": annotations}
                kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
                after = self._api.post(self._folder, {**kind, "metadata": metadata}, Lease, until)
            else:
                change = {"metadata": {"resourceVersion": page.version, "annotations": annotations}}
                after = self._api.patch(f"{self._folder}/{NAME}", change, Lease, until)
        except (AlreadyThere, Conflict):
            return False
        except NotThere as error:
            if page.version:
                return False  # somebody deleted it since: what is read next is an empty book
            raise ReadRefused(
                f"the fleet's book has no place: make the namespace {self._namespace}, or set `namespace` in "
                f"[actuators.kubernetes] ({error})"
            ) from error
        except (ActionDeferred, ActionRefused) as error:
            raise _failed("the fleet's book cannot be written", error) from error
        if (after.metadata.annotations or {}).get(BOOK) != annotations[BOOK]:
            raise ReadFailed("the API server took the fleet's book and did not keep it; does a webhook change Leases?")
        return True

    def _now(self, until: float) -> float:
        """The time by the API server, where there is no Lease whose answer tells it.

        Raises  ReadFailed
        """
        try:
            answer = self._api.ask("GET", "/version", until)
        except (ActionDeferred, ActionRefused) as error:
            raise _failed("the API server's clock cannot be read", error) from error
        if answer.utc is None:
            raise ReadFailed(NO_CLOCK)
        return answer.utc


def _failed(what: str, error: ActionDeferred | ActionRefused) -> ReadFailed:
    """The error of whoever asks a ledger."""
    kind = ReadRefused if isinstance(error, ActionRefused) else ReadFailed
    return kind(f"{what}: {error}")


def _packed(text: bytes) -> str:
    if len(text) <= PLAIN_MOST:
        return text.decode("utf-8")
    return PACKED + base64.b64encode(zlib.compress(text, 9)).decode("ascii")


def _unpacked(text: str) -> bytes:
    """The book that was written.

    Raises  ReadFailed
    """
    if not text.startswith(PACKED):
        return text.encode("utf-8")
    try:
        unpacking = zlib.decompressobj()
        book = unpacking.decompress(base64.b64decode(text[len(PACKED) :], validate=True), BOOK_MOST)
    except (binascii.Error, zlib.error) as error:
        raise ReadFailed(f"it cannot be unpacked ({error})") from error
    if not unpacking.eof:
        raise ReadFailed(f"it is longer than {BOOK_MOST} bytes, or broken off")
    return book
