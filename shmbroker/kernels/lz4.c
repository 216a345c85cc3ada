/* One LZ4 frame, decompressed (LZ4 Frame Format 1.6, LZ4 Block Format).
 *
 *   frame    magic 0x184d2204 | FLG | BD | [content size 8] | [dictionary id 4] | header checksum |
 *            block ... | 0 in 4 bytes | [content checksum 4]
 *   block    size, little-endian, top bit: stored as it is | bytes | [block checksum 4]
 *   bytes    token (literals << 4 | match - 4; 15: more in bytes that follow, while they are 255) |
 *            literals | distance back, 2 bytes | ...   the last one has literals only
 *
 * Kafka's clients write one frame for a batch; what follows it is not looked at, as the library
 * does. A dictionary is refused. All checksums are compared (XXH32 with seed 0).
 *
 * Short copies are made in steps of 16 bytes where source and target have room for it, and may
 * write a few bytes behind what they copy, never behind `room`.
 */

#include "kernels.h"

enum { CORRUPT = -2, NO_ROOM = -1 };

#define P1 2654435761u
#define P2 2246822519u
#define P3 3266489917u
#define P4 668265263u
#define P5 374761393u

static inline uint32_t
rotate(uint32_t x, int by) {
    return x << by | x >> (32 - by);
}

static uint32_t
xxh32(const uint8_t *p, int64_t size) {
    const uint8_t *end = p + size;
    uint32_t h;
    if (size >= 16) {
        uint32_t lane[4] = {P1 + P2, P2, 0, 0u - P1};
        for (; end - p >= 16; p += 16)
            for (int i = 0; i < 4; i++)
                lane[i] = rotate(lane[i] + load_le32(p + 4 * i) * P2, 13) * P1;
        h = rotate(lane[0], 1) + rotate(lane[1], 7) + rotate(lane[2], 12) + rotate(lane[3], 18);
    } else {
        h = P5;
    }
    h += (uint32_t)size;
    for (; end - p >= 4; p += 4)
        h = rotate(h + load_le32(p) * P3, 17) * P4;
    for (; p < end; p++)
        h = rotate(h + *p * P5, 11) * P1;
    h = (h ^ h >> 15) * P2;
    h = (h ^ h >> 13) * P3;
    return h ^ h >> 16;
}

/* The rest of a length whose 4 bits are all set; negative if it goes beyond the end. */
static inline int64_t
more_length(const uint8_t **at, const uint8_t *end) {
    int64_t length = 0;
    const uint8_t *p = *at;
    uint8_t byte;
    do {
        if (p == end)
            return -1;
        length += byte = *p++;
    } while (byte == 255);
    *at = p;
    return length;
}

/* One block from [s, s_end) to d; matches go back to `base` at most, output goes on to `limit`
 * (and scraps of short copies to `room`). The place behind the output; NULL: *why. */
static uint8_t *
block(const uint8_t *s, const uint8_t *s_end, const uint8_t *base, uint8_t *d, uint8_t *limit,
      const uint8_t *room, int why_limit, int *why) {
    *why = CORRUPT;
    while (s < s_end) {
        const unsigned token = *s++;
        int64_t literals = token >> 4;
        if (LIKELY(literals != 15 && s_end - s >= 16 && room - d >= 16)) {
            COPY16(d, s);
        } else {
            if (literals == 15) {
                int64_t more = more_length(&s, s_end);
                if (more < 0)
                    return NULL;
                literals += more;
            }
            if (literals > s_end - s)
                return NULL;
            if (literals > limit - d) {
                *why = why_limit;
                return NULL;
            }
            if (LIKELY(s_end - s >= literals + 16 && room - d >= literals + 16)) {
                for (int64_t i = 0; i < literals; i += 16)
                    COPY16(d + i, s + i);
            } else if (literals) {
                memcpy(d, s, (size_t)literals);
            }
        }
        s += literals;
        d += literals;
        if (UNLIKELY(d > limit)) {
            *why = why_limit;
            return NULL;
        }
        if (s == s_end)
            return d;
        if (s_end - s < 2)
            return NULL;
        const int64_t distance = s[0] | s[1] << 8;
        s += 2;
        if (distance == 0 || distance > d - base)
            return NULL;
        int64_t length = token & 15;
        if (length == 15) {
            int64_t more = more_length(&s, s_end);
            if (more < 0)
                return NULL;
            length += more;
        }
        length += 4;
        if (length > limit - d) {
            *why = why_limit;
            return NULL;
        }
        const uint8_t *from = d - distance;
        if (LIKELY(distance >= 16 && room - d >= length + 16)) {
            for (int64_t i = 0; i < length; i += 16)
                COPY16(d + i, from + i);
        } else if (distance == 1) {
            memset(d, *from, (size_t)length);
        } else {
            for (int64_t i = 0; i < length; i++)
                d[i] = from[i];
        }
        d += length;
    }
    return NULL; /* a block ends with literals */
}

/* The frame at s to `to`: how much was written, or NO_ROOM, or CORRUPT with *text. */
static int64_t
frame(const uint8_t *s, const uint8_t *s_end, uint8_t *to, uint8_t *room, const char **text) {
    *text = "an lz4 frame ends too early";
    if (s_end - s < 7)
        return CORRUPT;
    const uint8_t *descriptor = s + 4;
    const unsigned flags = s[4], sizes = s[5];
    if (load_le32(s) != 0x184d2204u || flags >> 6 != 1 || flags & 3 || sizes & 0x8f ||
        sizes >> 4 < 4) {
        *text = "no lz4 frame that Kafka's clients write";
        return CORRUPT;
    }
    const int is_independent = flags >> 5 & 1, has_block_sums = flags >> 4 & 1;
    const int has_size = flags >> 3 & 1, has_sum = flags >> 2 & 1;
    const int64_t block_max = (int64_t)1 << (8 + 2 * (sizes >> 4));
    uint64_t content_size = 0;
    s += 6;
    if (has_size) {
        if (s_end - s < 9)
            return CORRUPT;
        memcpy(&content_size, s, 8);
        s += 8;
    }
    if ((xxh32(descriptor, s - descriptor) >> 8 & 0xff) != *s) {
        *text = "the checksum of an lz4 frame's header is wrong";
        return CORRUPT;
    }
    s++;
    uint8_t *d = to;
    for (;;) {
        if (s_end - s < 4)
            return CORRUPT;
        const uint32_t word = load_le32(s);
        s += 4;
        if (!word)
            break;
        const int64_t size = word & 0x7fffffff;
        if (size > s_end - s || size > block_max)
            return CORRUPT;
        if (has_block_sums) {
            if (s_end - s < size + 4)
                return CORRUPT;
            if (xxh32(s, size) != load_le32(s + size)) {
                *text = "the checksum of an lz4 block is wrong";
                return CORRUPT;
            }
        }
        if (word >> 31) {
            if (size > room - d)
                return NO_ROOM;
            memcpy(d, s, (size_t)size);
            d += size;
        } else {
            const int is_bounded = room - d >= block_max;
            int why;
            d = block(s, s + size, is_independent ? d : to, d, is_bounded ? d + block_max : room,
                      room, is_bounded ? CORRUPT : NO_ROOM, &why);
            if (!d) {
                *text = "an lz4 block is corrupt";
                return why;
            }
        }
        s += size + (has_block_sums ? 4 : 0);
    }
    if (has_size && (uint64_t)(d - to) != content_size) {
        *text = "an lz4 frame has another size than it says";
        return CORRUPT;
    }
    if (has_sum) {
        if (s_end - s < 4)
            return CORRUPT;
        if (xxh32(to, d - to) != load_le32(s)) {
            *text = "the checksum of an lz4 frame's content is wrong";
            return CORRUPT;
        }
    }
    return d - to;
}

PyObject *
py_lz4_decompress(PyObject *self, PyObject *args) {
    Py_buffer source, target;
    Py_ssize_t position;
    if (!PyArg_ParseTuple(args, "y*w*n", &source, &target, &position))
        return NULL;
    int64_t written = CORRUPT;
    const char *text = "there is no such position in the target";
    if (position >= 0 && position <= target.len) {
        const uint8_t *s = source.buf;
        uint8_t *to = target.buf;
        Py_BEGIN_ALLOW_THREADS
        written = frame(s, s + source.len, to + position, to + target.len, &text);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&source);
    PyBuffer_Release(&target);
    if (written == CORRUPT) {
        PyErr_SetString(PyExc_ValueError, text);
        return NULL;
    }
    return PyLong_FromLongLong(written == NO_ROOM ? NO_ROOM : position + written);
}
