"""Random bytes and numbers for the kernels; run by `scripts/fuzz_kernels`, under a sanitizer.

Buffers are exactly as large as they must be and lie in the heap, so that a step outside is seen.
What the kernels answer is looked at by other tests: here they only must not leave their buffers.
"""

import contextlib
import random
import socket
import sys
import tempfile
import time
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from typing import Any

NAME = "shmbroker.kernels._native"


def load(path: str) -> Any:
    loader = ExtensionFileLoader(NAME, path)
    spec = spec_from_loader(NAME, loader)
    assert spec
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def zeros(size: int) -> memoryview:
    return memoryview(bytearray(size))


def int64s(values: list[int]) -> bytearray:
    return bytearray(b"".join((v & (2**64 - 1)).to_bytes(8, "little") for v in values))


def varint(value: int) -> bytes:
    value = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


class Made:
    """Attributes, and an identity."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Fuzz:
    def __init__(self, native: Any, seed: int) -> None:
        self.native = native
        self.rng = random.Random(seed)
        self.logs = [self.made_log() for _ in range(40)]
        self.written = tempfile.TemporaryFile()  # noqa: SIM115  # as long as this

    def record(self, delta: int) -> bytes:
        rng = self.rng
        parts = [b"\0", varint(rng.choice([0, 1, 70, -5, 10**6, 2**40])), varint(delta)]
        for _ in range(2):
            size = rng.choice([-1, 0, 8, 15, 16, 17, 63, 64, 65, 100, 511, 512, 513, 900])
            parts.append(varint(size) + bytes(max(size, 0)))
        headers = rng.choice([0, 0, 0, 1, 3])
        parts.append(varint(headers))
        contents = [varint(-1), varint(5) + b"12345"]
        parts += [varint(3) + b"abc" + rng.choice(contents) for _ in range(headers)]
        body = b"".join(parts)
        return varint(len(body)) + body

    def batch(self, base_offset: int) -> tuple[bytes, int]:
        rng, count = self.rng, self.rng.choice([1, 2, 10, 70, 140])
        records = b"".join(self.record(i) for i in range(count))
        head = base_offset.to_bytes(8, "big") + (49 + len(records)).to_bytes(4, "big")
        fields = rng.choice([b"\0\0", b"\0\x08", b"\0\x20"])
        fields += (count - 1).to_bytes(4, "big") + bytes(16) + b"\xff" * 14
        return head + bytes(4) + b"\x02" + bytes(4) + fields + count.to_bytes(
            4, "big"
        ) + records, count

    def damaged(self, data: bytes) -> bytes:
        rng, out = self.rng, bytearray(data)
        for _ in range(rng.choice([0, 0, 1, 2, 5, 40])):
            if out:
                out[rng.randrange(len(out))] = rng.choice(
                    [0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)]
                )
        if rng.random() < 0.3:
            del out[rng.randrange(len(out) + 1) :]
        return bytes(out)

    def log(self) -> bytes:
        return self.rng.choice(self.logs)

    def made_log(self) -> bytes:
        offset, parts = self.rng.choice([0, 7, 2**62]), []
        for _ in range(self.rng.choice([1, 1, 3, 20])):
            data, count = self.batch(offset)
            parts.append(data)
            offset += count
        return b"".join(parts)

    def decode(self) -> None:
        native, rng = self.native, self.rng
        # what a buffer ends with must end the allocation
        data = memoryview(bytearray(self.damaged(self.log())))
        table = bytearray(8 * native.BATCH_FIELDS * rng.choice([1, 5, 100]))
        start, end = rng.choice([(0, 2**62), (5, 9), (0, 2**63 - 1), (-(2**63), 2**63 - 1)])
        found, *_ = native.scan(
            data, 0, start, end, rng.choice([0, -5]), 2**40, 2**40, rng.random() < 0.1, table
        )
        if rng.random() < 0.2 and found:
            at = 8 * rng.randrange(native.BATCH_FIELDS * found)
            table[at : at + 8] = int64s([rng.choice([0, -1, 1, len(data), 2**63 - 1, -(2**63)])])
        rows = rng.choice([0, 1, 7, 8, 9, 100, 1000])
        state = bytearray(8 * native.STATE_FIELDS)
        for _ in range(30):
            crc, outputs = rng.random() < 0.1, self.outputs(rows)
            if native.decode(data, table, found, rows, start, end, crc, state, outputs) == 0:
                break

    def outputs(self, rows: int) -> tuple[Any, ...]:
        rng = self.rng
        room = rng.choice([0, 1, 100, 600, 5000, 100_000])
        bits = (rows + 7) // 8
        keys, values = rng.choice("nbv"), rng.choice("nbv")
        has_headers = rng.random() < 0.4
        outputs: list[Any] = [zeros(8 * rows), zeros(8 * rows), zeros(4 * rows)]
        for at in range(3):
            if rng.random() < 0.3:
                outputs[at] = None
        for kind in (keys, values):
            is_bytes = kind == "b"
            outputs += [zeros(4 * rows + 4), zeros(room)] if is_bytes else [None, None]
            outputs.append(None if kind == "n" else zeros(bits))
        outputs += [zeros(16 * rows) if kind == "v" else None for kind in (keys, values)]
        if has_headers:
            pairs = rng.choice([0, 1, 3, 50])
            ends = [zeros(4 * pairs + 4), zeros(4 * pairs + 4)]
            outputs += [
                zeros(4 * rows + 4),
                zeros(bits),
                ends[0],
                zeros(room),
                ends[1],
                zeros(room),
            ]
            outputs.append(zeros((pairs + 7) // 8))
        else:
            outputs += [None] * 7
        return tuple(outputs)

    def walk(self) -> None:
        data = self.log()
        count = int.from_bytes(data[57:61], "big")
        self.native.walk(
            self.damaged(data[61:]), count + self.rng.choice([0, 0, 1, -1]), 0, 10, True, 5
        )

    def compact(self) -> None:
        native, rng = self.native, self.rng
        # what a buffer ends with must end the allocation
        data = memoryview(bytearray(self.damaged(self.log())))
        room = rng.choice([1, 5, 100])
        fields = bytearray(8 * 11 * room)
        found, *_ = native.find_batches(data, fields)
        columns = [
            [
                int.from_bytes(fields[8 * (c * room + i) : 8 * (c * room + i) + 8], "little")
                for i in range(found)
            ]
            for c in range(11)
        ]
        at, end, base, count = columns[0], columns[1], columns[2], columns[10]
        native.check_crcs(data, int64s(at), int64s(end))
        count = [min(n, 10_000) for n in count]
        cells = [
            at,
            [a + 61 for a in at],
            end,
            base,
            columns[6],
            count,
            [rng.random() > 0.3] * found,
        ]
        if rng.random() < 0.2 and found:
            rng.choice(cells)[rng.randrange(found)] = rng.choice(
                [0, -1, 1, len(data), 2**63 - 1, -(2**63)]
            )
        table = int64s([int(cell) for column in cells for cell in column])
        rows = max(sum(max(n, 0) for n in cells[5]) + rng.choice([0, 0, 0, -1]), 0) % 100_000
        hashes, offsets, kinds = zeros(16 * rows), zeros(8 * rows), zeros(rows)
        draws = rng.randbytes(1120)
        keys_only = rng.random() < 0.3
        filled, _ = native.hash_keys(data, table, draws, keys_only, 3, hashes, offsets, kinds)
        slots = bytearray(24 * rng.choice([1, 7, 1000]))
        try:
            native.map_put(slots, hashes[: 16 * filled], offsets[: 8 * filled])
        except ValueError:
            pass
        keep, kept, tombstones = zeros(rows), zeros(8 * found), zeros(found)
        native.map_keep(slots, table, hashes, offsets, kinds, keep, kept, tombstones)
        chosen = bytes(rng.choice([0, 1, 2]) for _ in range(found))
        target = zeros(rng.choice([0, 300, 2 * len(data) + 20 * rows]))
        out = (target, zeros(8 * found), zeros(8 * found))
        native.keep_records(data, data, table, keep, chosen, 10**13, *out)

    def lz4(self) -> None:
        from lz4.frame import compress

        rng = self.rng
        content = rng.choice([bytes(3000), rng.randbytes(300), b"abcdefgh" * 900, self.log()])
        frame = self.damaged(
            compress(content, block_linked=rng.random() < 0.5, content_checksum=rng.random() < 0.2)
        )
        room = len(content) + rng.choice([0, 0, -1, -20, 5, 100])
        self.native.lz4_decompress(frame, zeros(max(room, 0)), 0)

    def encode(self) -> None:
        rng, rows = self.rng, self.rng.choice([0, 1, 5, 40])
        offsets = [0]
        for _ in range(rows + 2):
            offsets.append(offsets[-1] + rng.choice([0, 3, 70]))
        content = zeros(offsets[-1])
        if rng.random() < 0.3:
            offsets[rng.randrange(len(offsets))] = rng.choice([-1, 5, 2**31 - 1])
        ends = bytearray(b"".join((x & (2**32 - 1)).to_bytes(4, "little") for x in offsets))
        column = (
            rng.choice([None, rng.randbytes((rows + 9) // 8)]),
            ends,
            content,
            rng.choice([0, 2]),
        )
        pairs = (None, ends, 0, column, column)
        index = rng.choice([None, bytearray(4 * rows)])
        out = zeros(rng.choice([0, 10, 300, 9000]))
        self.native.murmur2(column, rows, zeros(4 * rows))
        delta = rng.choice([0, 60, 2**31 - 2])
        headers = rng.choice([None, pairs])
        batches = rng.choice([0, 1, 3])
        states, outs = bytearray(), []
        for _ in range(batches):
            outs.append(rng.choice([None, zeros(300), out]))
            place = rng.choice([0, 0, 5, 299])
            state = (place, rng.choice([300, 9000, 10, 301]), rng.choice([0, 64, 2**31 - 1]), 7, 7)
            states += b"".join(item.to_bytes(8, "little") for item in state)
        where = b"".join(
            rng.randrange(-1, 4).to_bytes(4, "little", signed=True) for _ in range(rows)
        )
        if rng.random() < 0.5:
            self.native.scatter(
                outs, states, bytearray(where), 0, rows, column, column, None, 0, headers, rows
            )
            return
        self.native.encode(
            out, 0, len(out), delta, index, 0, rows, column, column, None, 0, headers, rows
        )

    def appends(self) -> None:
        rng = self.rng
        is_flexible = rng.random() < 0.5
        data = bytearray()
        rows = rng.choice([0, 1, 2, 5])
        for _ in range(rows):
            batch = self.damaged(self.batch(0)[0]) if rng.random() < 0.2 else self.batch(0)[0]
            size = len(batch)
            head = size.to_bytes(4, "big")
            if is_flexible:
                low, high = size + 1 & 0x7F, size + 1 >> 7
                head = bytes([low | 0x80, high & 0x7F | 0x80, high >> 7])
            data += rng.randrange(9).to_bytes(4, "big") + head + batch + b"\0" * is_flexible
        data = bytearray(self.damaged(bytes(data))) if rng.random() < 0.3 else data
        end = rng.choice([len(data), len(data), rng.randrange(len(data) + 1), len(data) + 1, -1])
        places = bytearray(12 * rng.choice([rows, rows, rows + 1, 0]))
        at = rng.choice([0, 0, 1, -1, len(data)])
        self.native.find_appends(data, at, end, is_flexible, places)
        if rng.random() < 0.2:
            places = bytearray(rng.randbytes(len(places)))
        first, count = rng.choice([0, 0, 1, -1]), rng.choice([rows, rows, 1, 2**40, -1])
        target = bytearray(rng.choice([len(data) + 40 * rows, 60, 0]))
        results = bytearray(24 * rng.choice([rows, rows + 1, 0]))
        packed = bytearray(rng.randbytes(20 * rng.choice([0, 1, 3]) + rng.choice([0, 0, 7])))
        if rng.random() < 0.7:
            for n in range(0, len(packed) - 19, 20):
                packed[n : n + 4] = rng.choice([0, 1, 2**32 - 1]).to_bytes(4, "little")
        ask = rng.randrange(3)
        if ask == 0:
            self.native.pack_appends(
                target, rng.choice([0, 0, 7, -1]), data, places, first, count, bytearray(16)
            )
        elif ask == 1:
            self.native.put_stored(results, first, packed)
        else:
            self.native.answer_appends(places, results, first, is_flexible)

    def seldom(self, usual: Any, *others: Any) -> Any:
        """Mostly the first."""
        return usual if self.rng.random() < 0.9 else self.rng.choice(others)

    def partition(self) -> Any:
        """One whose limits may be wrong, so that only the map itself bounds what is stored."""
        rng, seldom, far = self.rng, self.seldom, 2**63 - 1
        room = rng.choice([60, 400, 4096, 4096])
        segment = Made(
            size=seldom(0, 5, room, -1), ready_bytes=seldom(room, far, -1),
            map=seldom(bytearray(room), None, b"fixed", 7),
            max_timestamp_so_far=-1, max_timestamp_offset=-1, base_offset=0,
            write_fd=seldom(self.written.fileno(), -1),
        )  # fmt: skip
        log = Made(
            active=segment, log_end_offset=seldom(7, 0, far), log_start_offset=0,
            _limit=rng.choice([room, far]), _write_limit=seldom(far, room),
            _roll_after=far, _roll_offset=seldom(far, 9),
            _latest_epoch=0, _index_after=rng.choice([far, 100, -1]), _store_position=None,
            _snapshot_after=seldom(9, 1), _index=lambda *_: None,
        )  # fmt: skip
        known = {5: Made(epoch=0, next_sequence=0)}
        producers = Made(
            ended=(), open={}, _refused={}, _producers=known, update=lambda *_: None,
        )  # fmt: skip
        return Made(
            is_leader=True, plain_bytes_max=seldom(1 << 20, 0), leader_epoch=0,
            timestamp_after_max_ms=seldom(far, 0), waits_for=seldom((), (1,)),
            high_watermark=0, log=log, producers=producers,
        )  # fmt: skip

    def plain_batch(self) -> bytes:
        rng = self.rng
        count = rng.choice([1, 1, 3])
        batch = bytearray(61 + rng.choice([7 * count, 40, 7] * 4 + [1 << 15]))
        batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
        batch[16] = 2
        batch[23:27] = (count - 1).to_bytes(4, "big")
        batch[43:57] = b"\xff" * 14
        if rng.random() < 0.3:
            batch[43:57] = bytes(7) + b"\5" + bytes(6)
        batch[57:61] = count.to_bytes(4, "big")
        if rng.random() < 0.2:
            batch[rng.randrange(len(batch))] = rng.randrange(256)
        batch[17:21] = self.native.crc32c(batch[21:]).to_bytes(4, "big")
        return bytes(batch)

    def plain(self) -> None:
        rng, native = self.rng, self.native
        keys = [bytes([n]) * 20 for n in range(3)]
        partitions = {key: self.partition() for key in keys[:2]}
        batches = [(rng.choice(keys), self.plain_batch()) for _ in range(rng.choice([1, 2, 6]))]
        if rng.random() < 0.5:
            rows = b"".join(key + len(of).to_bytes(4, "big") + of for key, of in batches)
            native.append_rows(
                self.seldom(rows, self.damaged(rows)), self.seldom(0, 24, -1), self.seldom(0, 1),
                self.seldom(len(batches), 1, 2**40), 5, rng.choice([1, -1]), rng.choice([0, 4]), 9,
                partitions, 0, set(), [],
            )  # fmt: skip
            return
        entries = b""
        for key, of in batches:
            head = bytes(8) + rng.choice([b"\1\0", b"\xff\xff"]) + bytes(6) + key + bytes(4)
            length = len(head) + len(of) + self.seldom(0, -1, 900, 2**31)
            entries += (length | 1 << 32).to_bytes(8, "little") + head + of
            entries += bytes(-len(entries) % 8)
        size = 64
        while size < len(entries):
            size *= 2
        size = self.seldom(size, size // 2, size - 8)
        data, back = bytearray(size), bytearray(self.seldom(4096, 64, 256, 100))
        data[:] = entries[:size].ljust(size, b"\0")
        tail = self.seldom(len(entries), len(entries) - 8, size, 2**40, -8)
        reader = Made(data=data, _head=self.seldom(0, 8, -8), _tail=tail)
        limit = self.seldom(len(back), 2**40, 0)
        writer = Made(data=back, _tail=self.seldom(0, 48, 2**40), _limit=limit)
        native.append_plain(reader, writer, partitions, 0, self.seldom(9, 1, 0), 2**40, set(), [])

    def straight(self) -> None:
        rng, seldom = self.rng, self.seldom
        keys = [bytes([n]) * 20 for n in range(2)]
        partitions = {key: self.partition() for key in keys}
        first, prefix, is_flexible = (
            b"\0\0\0\11",
            rng.randbytes(rng.choice([0, 9])),
            rng.random() < 0.5,
        )
        constant = rng.choice([b"\1\0", b"\xff\xff"]) + bytes(6) + rng.choice(keys)
        meaning = (
            first, prefix, seldom(constant, constant[:-1]), bytes(seldom(9, 2000)), bytes(4),
            is_flexible, rng.random() < 0.5,
        )  # fmt: skip
        frames = b""
        for _ in range(rng.choice([1, 2, 9, 300])):
            batch = self.plain_batch()
            size = seldom(len(batch), len(batch) - 1, 2**31 - 1, 0)
            if is_flexible:
                length = bytes([(size + 1) & 0x7F | 0x80, (size + 1) >> 7 & 0x7F])
            else:
                length = size.to_bytes(4, "big")
            inner = first + bytes(4) + prefix + length + batch + bytes(3 * is_flexible)
            frames += seldom(len(inner), 0, 2**31, 2**32 - 1).to_bytes(4, "big") + inner
        frames = seldom(frames, self.damaged(frames), frames[:-1])[:120_000]
        filled = rng.randrange(min(60, len(frames)))
        buffer = bytearray(frames[:filled] + bytes(1 << 16))
        marks = memoryview(bytearray(8)).cast("q")
        ours, client = socket.socketpair()
        with ours, client:
            client.sendall(frames[filled:])
            self.native.serve_ready(
                [(ours.fileno(), seldom(meaning, ()), marks, 0)], 0, buffer, filled, partitions,
                set(), 0, lambda *_asked: None, lambda *_asked: None,
                seldom({}, dict.fromkeys(keys)), seldom(True, False),
            )  # fmt: skip

    def ready(self) -> None:
        rng, seldom = self.rng, self.seldom
        key = bytes(20)
        first, prefix = b"\0\0\0\11", b"\0\0\0\11"
        meaning = first, prefix, b"\1\0" + bytes(6) + key, bytes(9), bytes(4), False, True
        marks = memoryview(bytearray(8 * 16)).cast("q")
        rows: list[object] = []
        with contextlib.ExitStack() as opened:
            for which in range(rng.choice([1, 2, 9, 16])):
                ours, client = map(opened.enter_context, socket.socketpair())
                sent = b""
                asks_offsets = rng.random() < 0.3
                for _ in range(rng.choice([0, 1, 1, 3, 40])):
                    if asks_offsets:
                        head = rng.choice([b"\0\x08", b"\0\x09"]) + b"\0\x08" + bytes(4)
                        inner = head + seldom(b"\0\1c\0", b"\xff\xff\0", b"\x7f\0") + bytes(9)
                    else:
                        batch = self.plain_batch()
                        inner = first + bytes(4) + prefix + len(batch).to_bytes(4, "big") + batch
                    sent += seldom(len(inner), 3, 2**31 - 1).to_bytes(4, "big") + inner
                client.sendall(seldom(sent, self.damaged(sent), sent[:-1])[:60_000])
                what = None if asks_offsets else meaning
                rows.append((ours.fileno(), what, seldom(marks, marks[:1]), seldom(which, 16, -1)))
            meanings = rng.choice([[None], [None, (*meaning[:1], b"other", *meaning[2:])], [()]])
            answers = rng.choice([[None], [b""], [bytes(4096), bytes(9)], [bytes(4097)]])
            self.native.serve_ready(
                rows, seldom(0, 1, 17), bytearray(seldom(1 << 16, 64, 1)), seldom(0, 3, -1),
                {key: self.partition()}, set(), 0, lambda *_asked: rng.choice(meanings),
                lambda *_asked: rng.choice(answers), seldom({}, {key: None}), seldom(True, False),
            )  # fmt: skip

    def standing(self) -> None:
        rng, seldom = self.rng, self.seldom
        words = memoryview(bytearray(8 * 8)).cast("q")
        words[2] = 7
        inner = b"\0\x0c\0\3" + bytes(4) + rng.randbytes(rng.choice([0, 9, 40, 1100]))
        key = rng.choice([1, 1, 2]), 12, 3, inner[8:]
        grant = seldom(words, words[:1], bytearray(3)), seldom(2, 7, 8, -1), seldom(7, 8)
        found = *grant, seldom(b"head", b"", bytes(16 << 10)), seldom(b"tail", b"")
        rows: list[object] = []
        with contextlib.ExitStack() as opened:
            for _ in range(rng.choice([1, 2, 9])):
                ours, client = map(opened.enter_context, socket.socketpair())
                sent = b""
                for _ in range(rng.choice([0, 1, 1, 3, 40])):
                    sent += seldom(len(inner), 3, 2**31 - 1, 2**32 - 1).to_bytes(4, "big") + inner
                client.sendall(seldom(sent, self.damaged(sent), sent[:-1]))
                rows.append(seldom((ours.fileno(), 1), ()))
            self.native.repeat_standing(
                rows, seldom(0, 1, 17), bytearray(seldom(1 << 16, 64, 1)), {key: seldom(found, ())},
                seldom(9, -1),
            )  # fmt: skip

    def look(self) -> None:
        size = self.seldom(4096, 0, 8, 4088)
        words = tuple(zeros(size) for _ in range(self.seldom(3, 0, 1025)))
        rings = self.native.rings(words)
        for each in words:
            each[self.rng.choice((0x80, 0x100))] = self.rng.randrange(2)
        assert all(index < len(words) for index in self.native.ready(rings))
        self.native.look(
            rings, self.seldom(2000, -1, 0), self.seldom(10**9, 0, -1), self.seldom(-1, 0, 10**6),
            self.seldom(1, 0, -1, 7),
        )  # fmt: skip


def main() -> None:
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else time.time_ns()
    print(f"seed {seed}", flush=True)
    fuzz = Fuzz(load(sys.argv[1]), seed)
    kinds = [
        *(fuzz.decode, fuzz.decode, fuzz.compact, fuzz.walk, fuzz.lz4, fuzz.encode),
        *(fuzz.appends, fuzz.plain, fuzz.plain, fuzz.straight, fuzz.ready, fuzz.look),
        fuzz.standing,
    ]
    deadline, runs, refused = time.monotonic() + seconds, 0, 0
    while time.monotonic() < deadline:
        try:
            fuzz.rng.choice(kinds)()
        except ValueError:
            refused += 1
        runs += 1
    print(f"{runs} runs, {refused} refused, nothing outside of a buffer")


main()
