"""Rules that look at single records."""

from shmbroker.records.batch import encode_batch
from shmbroker.records.validation import bad_timestamp_indexes, null_key_indexes


def view(*records, **how):
    return memoryview(encode_batch([(*record, []) for record in records], **how))


def test_null_keys_are_named():
    batch = view((1, b"a", b""), (2, None, b""), (3, b"", b""), (4, None, None), codec=4)
    assert null_key_indexes(batch) == [1, 3]
    assert null_key_indexes(view((1, b"a", b""))) == []


def test_bad_timestamps_are_named():
    batch = view((99, b"", b""), (100, b"", b""), (200, b"", b""), (201, b"", b""), (-1, b"", b""))
    assert bad_timestamp_indexes(batch, 100, 200) == [0, 3]


def test_what_cannot_be_walked_has_no_indexes():
    batch = memoryview(bytes(view((1, b"a", b"b")))[:-1] + b"\x08")
    assert null_key_indexes(batch) is None
    assert bad_timestamp_indexes(batch, 0, 10) is None
