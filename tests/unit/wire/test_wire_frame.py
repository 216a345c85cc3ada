"""Headers by hand against the headers of the schema table, and frames that are refused."""

import pytest

from shmbroker.errors import ProtocolFault
from shmbroker.wire import api_keys, codec, frame

API_VERSIONS_V3 = bytes.fromhex("0000000d 0012 0003 00000007 0002 6162 00")


def header(name, version, **message):
    return codec.encode(name, version, message)


def test_request_frame_has_the_bytes_of_the_format():
    assert frame.request_frame(api_keys.API_VERSIONS, 3, 7, "ab", b"") == API_VERSIONS_V3


def test_request_header_is_parsed_inside_a_larger_buffer():
    buffer = b"****" + API_VERSIONS_V3 + b"next frame"
    position = 4 + frame.FRAME_SIZE.size
    end = position + frame.frame_size(buffer, 4, 100)
    for view in (buffer, memoryview(bytearray(buffer))):
        assert frame.parse_request_header(view, position, end) == (18, 3, 7, b"ab", end)


@pytest.mark.parametrize("api_key", api_keys.TABLE)
@pytest.mark.parametrize("client_id", ["", "producer-1", None])
def test_headers_are_those_of_the_schema_table(api_key, client_id):
    _, first, last, flexible_from = api_keys.TABLE[api_key]
    for version in range(first, last + 1):
        is_flexible = version >= flexible_from
        assert api_keys.is_flexible(api_key, version) == is_flexible
        request_header = header(
            "RequestHeader",
            2 if is_flexible else 1,
            request_api_key=api_key,
            request_api_version=version,
            correlation_id=-5,
            client_id=client_id,
        )
        expected_id = None if client_id is None else client_id.encode()
        assert frame.parse_request_header(request_header, 0, len(request_header)) == (
            (api_key, version, -5, expected_id, len(request_header))
        )
        request = frame.request_frame(api_key, version, -5, client_id, b"body")
        assert request[4:] == request_header + b"body"
        assert frame.frame_size(request, 0, 1000) == len(request) - 4

        header_version = 1 if is_flexible and api_key != api_keys.API_VERSIONS else 0
        response_header = header("ResponseHeader", header_version, correlation_id=-5)
        assert frame.response_header(api_key, version, -5) == response_header
        response = frame.response_frame(api_key, version, -5, b"body")
        assert response[4:] == response_header + b"body"
        assert frame.frame_size(response, 0, 1000) == len(response) - 4
        assert frame.parse_response_header(api_key, version, response, 4) == (
            (-5, len(response) - 4)
        )


def test_tagged_fields_of_headers_are_skipped():
    request = bytes.fromhex("0012 0003 00000007 ffff  01 09 02 6162")
    assert frame.parse_request_header(request, 0, len(request))[4] == len(request)
    response = bytes.fromhex("00000007  01 09 02 6162")
    assert frame.parse_response_header(api_keys.FETCH, 12, response) == (7, len(response))


def test_client_id_need_not_be_text():
    request = bytes.fromhex("0003 0001 00000007 0002 c328")
    assert frame.parse_request_header(request, 0, len(request))[3] == b"\xc3\x28"


def test_api_versions_of_a_later_kafka_has_a_header_that_is_understood():
    request = bytes.fromhex("0012 0063 00000007 0001 61 00")
    assert frame.parse_request_header(request, 0, len(request)) == (18, 99, 7, b"a", len(request))


def test_truncated_request_header_is_refused():
    content = API_VERSIONS_V3[4:]
    for end in range(len(content)):
        with pytest.raises(ProtocolFault):
            frame.parse_request_header(content[:end], 0, end)
        with pytest.raises(ProtocolFault):
            frame.parse_request_header(content + b"next", 0, end)


@pytest.mark.parametrize(
    "request_bytes",
    [
        "0004 0000 00000007 ffff",  # LeaderAndIsr, removed
        "7fff 0000 00000007 ffff",
        "ffff 0000 00000007 ffff",
        "0003 0001 00000007 fffe",
        "0003 0001 00000007 7fff 61",
        "0012 0003 00000007 ffff 01 09 7f",
    ],
)
def test_malformed_request_header_is_refused(request_bytes):
    content = bytes.fromhex(request_bytes)
    with pytest.raises(ProtocolFault):
        frame.parse_request_header(content, 0, len(content))


@pytest.mark.parametrize("is_flexible", (False, True))
@pytest.mark.parametrize("client", ("0002 6162", "0000", "ffff", "0001 61", "7fff 61", "fffe"))
@pytest.mark.parametrize("tags", ("00", "01 09 02 6162", "01 09 7f"))
def test_skipped_header_is_what_is_parsed(is_flexible, client, tags):
    """Whole and cut off anywhere: the same client id and place, or both are at fault."""
    head = bytes.fromhex(("000a 0004" if is_flexible else "000a 0000") + "00000007" + client)
    content = head + (bytes.fromhex(tags) if is_flexible else b"")
    ends = [*range(8, len(content) + 1), len(content) + 70_000]
    for end in ends:
        whole = content + bytes(max(0, end - len(content)))  # a body: more than a size may say
        for buffer in (whole[:end], whole[:end] + b"next"):
            try:
                expected = frame.parse_request_header(buffer, 0, end)[3:]
            except ProtocolFault:
                with pytest.raises(ProtocolFault):
                    frame.skip_request_header(buffer, 0, end, is_flexible)
            else:
                assert frame.skip_request_header(buffer, 0, end, is_flexible) == expected


def test_frame_size_outside_its_limits_is_refused():
    for size in (0, 100):
        assert frame.frame_size(frame.FRAME_SIZE.pack(size), 0, 100) == size
    for size in (-1, 101, 2**31 - 1):
        with pytest.raises(ProtocolFault):
            frame.frame_size(frame.FRAME_SIZE.pack(size), 0, 100)


def test_truncated_response_header_is_refused():
    for content in (b"", b"\x00\x00\x00", b"\x00\x00\x00\x07"):
        with pytest.raises(ProtocolFault):
            frame.parse_response_header(api_keys.FETCH, 12, content)
