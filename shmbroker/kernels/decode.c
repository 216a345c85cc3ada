/* Records to Arrow buffers (layouts: `kernels.h`; a record: `encode.c`).
 *
 * One pass: a record is parsed and what is wanted of it copied at once. A row that does not fit
 * into what room there is left for its bytes is not begun; the next call goes on with it.
 *
 * There are three ways to read a record. Where many follow each other that are laid out alike, the
 * first one of them says what to compare the others with (`struct shape`). The quick one takes what
 * nearly all records are: numbers of one or two bytes, no headers, in the range, with room for it.
 * It reads on before it has compared anything, as two bytes can't name a place further than
 * QUICK_BYTES from here and so much of `raw` is left, and believes the record only if all of it fits
 * together. Whatever does not is read again by the careful way, which compares every step with the
 * end of the record, and knows what is wrong. (100 and 250 instructions for a record of 108 bytes.)
 */

#include "kernels.h"

#define TIMESTAMP_MS_MAX (INT64_MAX / 1000 - 1)
#define APPEND_TIME_BIT 8
#define AHEAD 1024 /* bytes from here are fetched in advance ... */
#define AHEAD_MAX (32 << 10) /* ... or, where the CRC has fetched them, so much of the next batch */

/* Of two bytes 15 bits come out, so half of 2^15: twice, for key and value, and what is around. */
#define QUICK_BYTES (2 * (1 << 14) + 32)

#define COPY_MAX 512       /* strings up to this are copied in steps of 64 bytes ... */
#define COPY_ROOM (512 + 64) /* ... if there is so much room on both sides */

static const char NOT_FILLED[] = "the records of the batch at %lld do not fill it";
static const char BEYOND[] = "a record of the batch at %lld goes beyond its end";
static const char HEADER_BEYOND[] = "a header in the batch at %lld goes beyond its record";

/* Copy a string; more than it if `to` is not behind `to_safe` and `from` not behind `from_safe`. */
static inline void
copy(uint8_t *to, const uint8_t *from, int64_t size, const uint8_t *to_safe,
     const uint8_t *from_safe) {
    if (LIKELY(size <= COPY_MAX && to <= to_safe && from <= from_safe)) {
        COPY16(to, from);
        if (size > 16) {
            COPY16(to + 16, from + 16);
            COPY32(to + 32, from + 32);
            for (int64_t i = 64; i < size; i += 64) {
                COPY32(to + i, from + i);
                COPY32(to + i + 32, from + i + 32);
            }
        }
    } else if (size) {
        memcpy(to, from, (size_t)size);
    }
}

/* Arrow's binary view: up to 12 bytes in itself, of more the first 4 and the place in `raw`. */
static inline void
put_view(uint8_t *to, const uint8_t *raw, const uint8_t *begin, int64_t length) {
    const int32_t size = (int32_t)length;
    memset(to, 0, 16);
    memcpy(to, &size, 4);
    if (length <= 12) {
        if (length > 0)
            memcpy(to + 4, begin, (size_t)length);
    } else {
        const int32_t place = (int32_t)(begin - raw);
        memcpy(to + 4, begin, 4);
        memcpy(to + 12, &place, 4);
    }
}

static inline void
clear_bit(uint8_t *bits, int64_t at) {
    bits[at >> 3] &= (uint8_t)~(1u << (at & 7));
}

/* The pointers of the outputs, and the room of those of any size. */
struct outputs {
    uint8_t *at[OUTPUTS];
    int64_t size[OUTPUTS];
};

struct rows {
    const uint8_t *raw;
    int64_t raw_size;
    const int64_t *table;
    int64_t batches, rows_max, start_offset, end_offset;
    int checks_crc;
    int64_t *state;
};

/* How a column of strings is wanted. */
enum strings { NONE, BYTES, VIEWS };

/* A column of strings while it is written. */
struct strings_out {
    int32_t *ends;
    uint8_t *valid, *views;
    uint8_t *begin, *to, *stop, *safe;
    int64_t nulls;
};

static inline struct strings_out
strings_out(uint8_t *ends, uint8_t *bytes, int64_t size, uint8_t *valid, uint8_t *views) {
    struct strings_out s = {(int32_t *)ends, valid, views, bytes, bytes, bytes + size, NULL, 0};
    if (size >= COPY_ROOM)
        s.safe = s.stop - COPY_ROOM;
    if (ends)
        s.ends[0] = 0;
    return s;
}

static inline void
put_string(struct strings_out *s, const enum strings kind, int64_t row, const uint8_t *begin,
           int64_t length, const uint8_t *raw, const uint8_t *raw_safe) {
    if (kind == BYTES) {
        copy(s->to, begin, length, s->safe, raw_safe);
        s->to += length;
        s->ends[row + 1] = (int32_t)(s->to - s->begin);
    } else if (kind == VIEWS) {
        put_view(s->views + 16 * row, raw, begin, length);
    }
}

static inline void
put_null(struct strings_out *s, int64_t row) {
    clear_bit(s->valid, row);
    s->nulls++;
}

/* The headers column while it is written. */
struct headers_out {
    int32_t *list_ends;
    uint8_t *list_valid;
    int64_t pairs, pairs_room, list_nulls;
    struct strings_out names, contents;
};

/* The headers of a record at q, all of them or none: 1: done, 0: no room, -1: a flaw. */
static int
put_headers(struct headers_out *h, int64_t row, int64_t count, const uint8_t *q,
            const uint8_t *end, const uint8_t *raw_safe, const char **text) {
    struct strings_out names = h->names, contents = h->contents;
    if (count > h->pairs_room - h->pairs)
        return 0;
    *text = HEADER_BEYOND;
    for (int64_t pair = h->pairs; pair < h->pairs + count; pair++) {
        int64_t name_length, length;
        const uint8_t *name = varint(q, end, 5, &name_length);
        if (!name || name_length < 0 || name_length > end - name)
            return -1;
        const uint8_t *content = varint(name + name_length, end, 5, &length);
        if (!content || length > end - content)
            return -1;
        const int is_null = length < 0;
        if (is_null)
            length = 0;
        q = content + length;
        if (name_length > names.stop - names.to || length > contents.stop - contents.to)
            return 0;
        put_string(&names, BYTES, pair, name, name_length, NULL, raw_safe);
        put_string(&contents, BYTES, pair, content, length, NULL, raw_safe);
        contents.valid[pair >> 3] |= (uint8_t)(1u << (pair & 7));
        if (is_null)
            put_null(&contents, pair);
    }
    if (q != end) {
        *text = "headers in the batch at %lld do not end with their record";
        return -1;
    }
    h->names = names;
    h->contents = contents;
    h->pairs += count;
    h->list_ends[row + 1] = (int32_t)h->pairs;
    if (!count) {
        clear_bit(h->list_valid, row);
        h->list_nulls++;
    }
    return 1;
}

/* How a record is laid out, so that others can be known to be the same by comparing a few words.
 * Of the first 8 bytes all stand in `mask` that say where something is: lengths, and whether a
 * number goes on; not its other bits, and not the attributes. */
struct shape {
    uint64_t mask, expected;
    uint32_t value_mask, value_expected;
    int time_shift, delta_shift;
    uint32_t time_high, delta_high; /* bits of a second byte, where there is one */
    int64_t size, key_at, key_length, value_length_at, value_at, value_length;
    int has_key;
};

/* A number of one or two bytes in the shape's first 8, at *at; `is_fixed`: all of it is compared. */
static inline int
shape_number(struct shape *s, const uint8_t *p, int *at, int is_fixed, uint32_t *raw) {
    const int size = p[*at] < 0x80 ? 1 : 2;
    if (*at + size > 8 || (size == 2 && p[*at + 1] >= 0x80))
        return 0;
    *raw = size == 1 ? p[*at] : (p[*at] & 0x7fu) | (uint32_t)p[*at + 1] << 7;
    const uint64_t bits = is_fixed ? 0xffff : 0x8080;
    s->mask |= (size == 1 ? bits & 0xff : bits) << 8 * *at;
    *at += size;
    return size;
}

/* The shape of the record at p, behind which QUICK_BYTES can be read; 0 if it has none. */
static int
find_shape(const uint8_t *p, struct shape *s) {
    uint32_t length, time, delta, key_length, value_length;
    int at = 0, size;
    s->mask = 0;
    if (!shape_number(s, p, &at, 1, &length))
        return 0;
    s->size = at + (length >> 1);
    s->time_shift = 8 * ++at;
    if (!(size = shape_number(s, p, &at, 0, &time)))
        return 0;
    s->time_high = size == 2 ? 0x3f80 : 0;
    s->delta_shift = 8 * at;
    s->mask |= (uint64_t)1 << s->delta_shift; /* of a negative one */
    if (!(size = shape_number(s, p, &at, 0, &delta)))
        return 0;
    s->delta_high = size == 2 ? 0x3f80 : 0;
    if (!shape_number(s, p, &at, 1, &key_length))
        return 0;
    memcpy(&s->expected, p, 8);
    s->expected &= s->mask;
    s->has_key = !(key_length & 1);
    s->key_at = at;
    s->key_length = s->has_key ? key_length >> 1 : 0;
    s->value_length_at = at + s->key_length;
    const uint8_t *const q = p + s->value_length_at;
    size = q[0] < 0x80 ? 1 : 2;
    s->value_mask = size == 1 ? 0xff : 0xffff;
    s->value_expected = (q[0] | (uint32_t)q[1] << 8) & s->value_mask;
    value_length = size == 1 ? q[0] : (q[0] & 0x7fu) | (uint32_t)q[1] << 7;
    s->value_at = s->value_length_at + size;
    s->value_length = value_length >> 1;
    return !((length | delta | value_length) & 1) && (size == 1 || q[1] < 0x80) &&
           (s->has_key || key_length == 1) && s->value_at + s->value_length + 1 == s->size;
}

static inline uint32_t
shaped_number(uint64_t word, int shift, uint32_t high) {
    const uint32_t low = (uint32_t)(word >> shift);
    return (low & 0x7f) | (low >> 1 & high);
}

static inline int64_t
least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* How many strings of a length there is room for, as `copy` needs it. */
static inline int64_t
room_for(const struct strings_out *s, int64_t length) {
    if (!s->safe || s->to > s->safe)
        return 0;
    return length ? (s->safe - s->to) / length + 1 : INT32_MAX;
}

/* Milliseconds since the base of their batch to microseconds. */
static inline void
finish_times(int64_t *times, int64_t count, int64_t base, int is_append_time) {
    for (int64_t i = 0; i < count; i++) {
        int64_t ms = base + (is_append_time ? 0 : times[i]);
        ms = ms > TIMESTAMP_MS_MAX ? TIMESTAMP_MS_MAX : ms;
        ms = ms < -TIMESTAMP_MS_MAX ? -TIMESTAMP_MS_MAX : ms;
        times[i] = ms * 1000;
    }
}

/* The kinds and `has_headers` are constants where this is used, so that the compiler leaves out
 * everything else. */
static inline __attribute__((always_inline)) int64_t
decode_as(const struct rows *in, const struct outputs *out, struct flaw *flaw,
          const enum strings key_kind, const enum strings value_kind, const int has_headers) {
    const uint8_t *const raw = in->raw, *const raw_end = raw + in->raw_size;
    const uint8_t *const raw_safe = in->raw_size >= COPY_ROOM ? raw_end - COPY_ROOM : NULL;
    const uint8_t *const quick_end = in->raw_size >= QUICK_BYTES ? raw_end - QUICK_BYTES : NULL;
    const int64_t rows_max = in->rows_max;
    int64_t *const offsets = (int64_t *)out->at[O_OFFSET];
    int64_t *const times = (int64_t *)out->at[O_TIMESTAMP];
    int32_t *const types = (int32_t *)out->at[O_TYPE];
    struct strings_out keys = strings_out(out->at[O_KEY_OFFSETS], out->at[O_KEY_BYTES],
                                          out->size[O_KEY_BYTES], out->at[O_KEY_VALID],
                                          out->at[O_KEY_VIEWS]);
    struct strings_out values = strings_out(out->at[O_VALUE_OFFSETS], out->at[O_VALUE_BYTES],
                                            out->size[O_VALUE_BYTES], out->at[O_VALUE_VALID],
                                            out->at[O_VALUE_VIEWS]);
    struct headers_out headers_out = {
        (int32_t *)out->at[O_LIST_OFFSETS],
        out->at[O_LIST_VALID],
        0,
        out->size[O_CONTENT_VALID],
        0,
        strings_out(out->at[O_NAME_OFFSETS], out->at[O_NAME_BYTES], out->size[O_NAME_BYTES], NULL,
                    NULL),
        strings_out(out->at[O_CONTENT_OFFSETS], out->at[O_CONTENT_BYTES],
                    out->size[O_CONTENT_BYTES], out->at[O_CONTENT_VALID], NULL),
    };
    if (has_headers)
        headers_out.list_ends[0] = 0;
    const int wants_fields = key_kind || value_kind || has_headers;

    int64_t rows = 0, batch = in->state[S_BATCH], done = in->state[S_DONE];
    int64_t last = in->state[S_LAST];
    const uint8_t *p = raw + in->state[S_POSITION];
    int is_full = 0;

    for (; batch < in->batches && !is_full; batch++, done = 0) {
        const int64_t *const b = in->table + batch * BATCH_FIELDS;
        const int64_t low = b[B_LOW], high_at = b[B_HIGH], count = b[B_COUNT];
        if (low < 0 || high_at < low || high_at > in->raw_size || count < 0 ||
            (done && (p < raw + low || p > raw + high_at))) {
            FLAW(flaw, "row %lld of the batch table lies outside of %lld bytes", batch,
                 in->raw_size);
            return rows;
        }
        const uint8_t *const high = raw + high_at;
        const int64_t base_offset = b[B_BASE_OFFSET], last_delta = b[B_LAST_DELTA];
        /* offset deltas that are wanted: [delta_low, delta_end) */
        const int64_t delta_low = in->start_offset - base_offset;
        const int64_t delta_end = in->end_offset - base_offset;
        const int64_t delta_max = last_delta < delta_end ? last_delta : delta_end - 1;
        if (!done) {
            p = raw + low;
            last = -1;
            if (count > (high - p) / 7) {
                FLAW(flaw, "the batch at %lld is too short for its record count", b[B_POSITION], 0);
                return rows;
            }
        }
        int64_t ahead = AHEAD;
        if (in->checks_crc) {
            const int64_t at = b[B_POSITION];
            if (at < 0 || at > low - HEADER_SIZE) {
                FLAW(flaw, "row %lld of the batch table lies outside of %lld bytes", batch,
                     in->raw_size);
                return rows;
            }
            const uint8_t *const sealed = raw + at + AT_ATTRIBUTES;
            if (!done && crc32c(0, sealed, (size_t)(high - sealed)) != load_be32(raw + at + AT_CRC)) {
                FLAW(flaw, "the CRC of the batch at %lld is wrong", at, 0);
                return rows;
            }
            ahead = high - (raw + at) < AHEAD_MAX ? high - (raw + at) : AHEAD_MAX;
        }
        const int64_t first_row = rows;
        int64_t next_shape = done;
        for (; done < count; done++) {
            struct shape found_shape;
            if (!has_headers && wants_fields && done >= next_shape && p <= quick_end &&
                find_shape(p, &found_shape) && found_shape.key_length <= COPY_MAX &&
                found_shape.value_length <= COPY_MAX) {
                const struct shape s = found_shape; /* whose address nobody has */
                int64_t most = least(count - done, rows_max - rows);
                most = least(most, least((high - p) / s.size, (quick_end - p) / s.size + 1));
                if (key_kind == BYTES)
                    most = least(most, room_for(&keys, s.key_length));
                if (value_kind == BYTES)
                    most = least(most, room_for(&values, s.value_length));
                int64_t delta_min = last + 1 > delta_low ? last + 1 : delta_low, row = rows;
                for (const int64_t end = rows + most; row < end; row++) {
                    uint64_t word;
                    uint16_t value_bits;
                    memcpy(&word, p, 8);
                    memcpy(&value_bits, p + s.value_length_at, 2);
                    const int64_t delta = shaped_number(word, s.delta_shift, s.delta_high) >> 1;
                    if (UNLIKELY((word & s.mask) != s.expected ||
                                 (value_bits & s.value_mask) != s.value_expected ||
                                 p[s.size - 1] || delta < delta_min || delta > delta_max))
                        break;
                    __builtin_prefetch(p + ahead);
                    __builtin_prefetch(p + ahead + 64);
                    put_string(&keys, key_kind, row, p + s.key_at, s.key_length, raw, raw_safe);
                    put_string(&values, value_kind, row, p + s.value_at, s.value_length, raw,
                               raw_safe);
                    if (offsets)
                        offsets[row] = base_offset + delta;
                    if (times) {
                        const uint32_t time = shaped_number(word, s.time_shift, s.time_high);
                        times[row] = (int64_t)(time >> 1) ^ -(int64_t)(time & 1);
                    }
                    delta_min = delta + 1;
                    p += s.size;
                }
                const int64_t found = row - rows;
                /* of those that are not alike few are looked at */
                next_shape = found >= 16 ? done + found : done < 64 ? 64 : done + 256;
                if (found) {
                    last = delta_min - 1;
                    if (key_kind && !s.has_key)
                        for (int64_t null = rows; null < row; null++)
                            put_null(&keys, null);
                    rows = row;
                    done += found - 1;
                    continue;
                }
            }
            if (UNLIKELY(rows == rows_max)) {
                is_full = 1;
                break;
            }
            __builtin_prefetch(p + ahead);
            __builtin_prefetch(p + ahead + 64);
            if (LIKELY(!has_headers && p <= quick_end)) {
                uint32_t longer = 0, length_bits, time_bits, delta_bits, key_bits, value_bits = 0;
                const uint8_t *q = quick_length(p, &length_bits, &longer), *key = NULL;
                const uint8_t *const end = q + (length_bits >> 1), *value = NULL;
                int64_t key_length = 0, value_length = 0;
                int fits = 1, has_key = 1;
                q = quick_varint(q + 1, &time_bits, &longer);
                q = quick_varint(q, &delta_bits, &longer);
                const int64_t delta = delta_bits >> 1;
                if (wants_fields) {
                    q = key = quick_varint(q, &key_bits, &longer);
                    if (LIKELY(!(key_bits & 1)))
                        q += key_length = key_bits >> 1;
                    else
                        has_key = 0;
                    q = value = quick_length(q, &value_bits, &longer);
                    q += value_length = value_bits >> 1;
                    fits = q + 1 == end && !*q;
                    if (key_kind == BYTES)
                        fits = fits && key_length <= keys.stop - keys.to;
                    if (value_kind == BYTES)
                        fits = fits && value_length <= values.stop - values.to;
                } else {
                    fits = length_bits >= 12 && q <= end;
                }
                if (LIKELY(fits && longer < 0x80 &&
                           !((length_bits | delta_bits | value_bits) & 1) && end <= high &&
                           delta > last && delta >= delta_low && delta <= delta_max)) {
                    if (key_kind) {
                        put_string(&keys, key_kind, rows, key, key_length, raw, raw_safe);
                        if (UNLIKELY(!has_key))
                            put_null(&keys, rows);
                    }
                    put_string(&values, value_kind, rows, value, value_length, raw, raw_safe);
                    if (offsets)
                        offsets[rows] = base_offset + delta;
                    if (times)
                        times[rows] = (int64_t)(time_bits >> 1) ^ -(int64_t)(time_bits & 1);
                    rows++;
                    last = delta;
                    p = end;
                    continue;
                }
            }
            int64_t length, time_delta, delta;
            const uint8_t *q = varint(p, high, 5, &length);
            if (UNLIKELY(!q || length < 6 || length > high - q)) {
                FLAW(flaw, NOT_FILLED, b[B_POSITION], 0);
                return rows;
            }
            const uint8_t *const end = q + length;
            if (UNLIKELY(!(q = varint(q + 1, end, 10, &time_delta)) ||
                         !(q = varint(q, end, 5, &delta)))) {
                FLAW(flaw, BEYOND, b[B_POSITION], 0);
                return rows;
            }
            if (UNLIKELY(delta <= last || delta > last_delta)) {
                FLAW(flaw, "record offsets of the batch at %lld do not grow inside of it",
                     b[B_POSITION], 0);
                return rows;
            }
            if (UNLIKELY(delta >= delta_end)) {
                batch = in->batches; /* there is nothing more to come */
                done = 0;
                is_full = 1;
                break;
            }
            if (UNLIKELY(delta < delta_low)) {
                last = delta;
                p = end;
                continue;
            }
            if (wants_fields) {
                int64_t key_length, value_length, headers;
                const uint8_t *const key = varint(q, end, 5, &key_length);
                if (UNLIKELY(!key || key_length > end - key)) {
                    FLAW(flaw, BEYOND, b[B_POSITION], 0);
                    return rows;
                }
                const int has_key = key_length >= 0;
                key_length = has_key ? key_length : 0;
                const uint8_t *const value = varint(key + key_length, end, 5, &value_length);
                if (UNLIKELY(!value || value_length > end - value)) {
                    FLAW(flaw, BEYOND, b[B_POSITION], 0);
                    return rows;
                }
                const int has_value = value_length >= 0;
                value_length = has_value ? value_length : 0;
                q = varint(value + value_length, end, 5, &headers);
                if (UNLIKELY(!q || headers < 0 || 2 * headers > end - q ||
                             (!headers && q != end))) {
                    FLAW(flaw, "a record of the batch at %lld has fields that do not end with it",
                         b[B_POSITION], 0);
                    return rows;
                }
                if ((key_kind == BYTES && key_length > keys.stop - keys.to) ||
                    (value_kind == BYTES && value_length > values.stop - values.to)) {
                    is_full = 1;
                    break;
                }
                if (has_headers) {
                    const char *text;
                    const int was_put =
                        put_headers(&headers_out, rows, headers, q, end, raw_safe, &text);
                    if (was_put < 0) {
                        FLAW(flaw, text, b[B_POSITION], 0);
                        return rows;
                    }
                    if (!was_put) {
                        is_full = 1;
                        break;
                    }
                }
                if (key_kind) {
                    put_string(&keys, key_kind, rows, key, key_length, raw, raw_safe);
                    if (!has_key)
                        put_null(&keys, rows);
                }
                if (value_kind) {
                    put_string(&values, value_kind, rows, value, value_length, raw, raw_safe);
                    if (!has_value)
                        put_null(&values, rows);
                }
            }
            if (offsets)
                offsets[rows] = base_offset + delta;
            if (times)
                times[rows] = time_delta;
            rows++;
            last = delta;
            p = end;
        }
        const int is_append_time = (b[B_ATTRIBUTES] & APPEND_TIME_BIT) != 0;
        if (times)
            finish_times(times + first_row, rows - first_row,
                         is_append_time ? b[B_MAX_TIMESTAMP] : b[B_BASE_TIMESTAMP],
                         is_append_time);
        if (types)
            for (int64_t row = first_row; row < rows; row++)
                types[row] = is_append_time;
        if (is_full)
            break;
        if (p != high) {
            FLAW(flaw, NOT_FILLED, b[B_POSITION], 0);
            return rows;
        }
    }
    in->state[S_BATCH] = batch;
    in->state[S_DONE] = done;
    in->state[S_POSITION] = done ? p - raw : 0;
    in->state[S_LAST] = done ? last : 0;
    in->state[S_KEY_BYTES] = keys.to - keys.begin;
    in->state[S_KEY_NULLS] = keys.nulls;
    in->state[S_VALUE_BYTES] = values.to - values.begin;
    in->state[S_VALUE_NULLS] = values.nulls;
    in->state[S_HEADERS] = headers_out.pairs;
    in->state[S_HEADER_NULLS] = headers_out.list_nulls;
    in->state[S_NAME_BYTES] = headers_out.names.to - headers_out.names.begin;
    in->state[S_CONTENT_BYTES] = headers_out.contents.to - headers_out.contents.begin;
    in->state[S_CONTENT_NULLS] = headers_out.contents.nulls;
    return rows;
}

static inline __attribute__((always_inline)) int64_t
decode_any(const struct rows *in, const struct outputs *out, struct flaw *flaw) {
    uint8_t *const *at = out->at;
    const enum strings keys = at[O_KEY_OFFSETS] ? BYTES : at[O_KEY_VIEWS] ? VIEWS : NONE;
    const enum strings values = at[O_VALUE_OFFSETS] ? BYTES : at[O_VALUE_VIEWS] ? VIEWS : NONE;
    if (at[O_LIST_OFFSETS])
        return decode_as(in, out, flaw, keys, values, 1);
    if (keys == NONE && values == NONE)
        return decode_as(in, out, flaw, NONE, NONE, 0);
    if (keys == NONE && values == BYTES)
        return decode_as(in, out, flaw, NONE, BYTES, 0);
    if (keys == BYTES && values == BYTES)
        return decode_as(in, out, flaw, BYTES, BYTES, 0);
    return decode_as(in, out, flaw, keys, values, 0);
}

WITH_AVX2 static int64_t
decode_avx2(const struct rows *in, const struct outputs *out, struct flaw *flaw) {
    return decode_any(in, out, flaw);
}

static int64_t
decode_plain(const struct rows *in, const struct outputs *out, struct flaw *flaw) {
    return decode_any(in, out, flaw);
}

/* Bytes an output must have for `rows` rows, and what its items are aligned to. */
static int64_t
needed(int output, int64_t rows, int *item) {
    *item = 1;
    switch (output) {
    case O_OFFSET:
    case O_TIMESTAMP:
        *item = 8;
        return 8 * rows;
    case O_TYPE:
        *item = 4;
        return 4 * rows;
    case O_KEY_OFFSETS:
    case O_VALUE_OFFSETS:
    case O_LIST_OFFSETS:
        *item = 4;
        return 4 * (rows + 1);
    case O_NAME_OFFSETS:
    case O_CONTENT_OFFSETS:
        *item = 4;
        return 4;
    case O_KEY_VALID:
    case O_VALUE_VALID:
    case O_LIST_VALID:
        return (rows + 7) / 8;
    case O_KEY_VIEWS:
    case O_VALUE_VIEWS:
        return 16 * rows;
    default:
        return 0;
    }
}

/* Take the buffers of the outputs; how many were taken, to be released. An exception may be set. */
static int
take_outputs(PyObject *tuple, int64_t rows_max, Py_buffer *views, struct outputs *out) {
    int taken = 0;
    memset(out, 0, sizeof *out);
    if (PyTuple_Size(tuple) != OUTPUTS) {
        PyErr_Format(PyExc_ValueError, "there must be %d outputs", (int)OUTPUTS);
        return 0;
    }
    for (int i = 0; i < OUTPUTS; i++) {
        PyObject *object = PyTuple_GetItem(tuple, i);
        if (object == Py_None)
            continue;
        int item;
        const int64_t bytes = needed(i, rows_max, &item);
        if (get_buffer(object, &views[taken], 1, item, "an output") < 0)
            return taken;
        const Py_buffer *view = &views[taken++];
        if (view->len < bytes) {
            PyErr_Format(PyExc_ValueError, "output %d is too small for its rows", i);
            return taken;
        }
        /* an Arrow offset reaches no further */
        out->size[i] = view->len < INT32_MAX ? view->len : INT32_MAX;
        out->at[i] = view->buf;
    }
    uint8_t **at = out->at;
    const int keys = at[O_KEY_OFFSETS] != NULL, values = at[O_VALUE_OFFSETS] != NULL;
    const int headers = at[O_LIST_OFFSETS] != NULL;
    int are_whole = keys == (at[O_KEY_BYTES] != NULL) && values == (at[O_VALUE_BYTES] != NULL) &&
                    (keys ^ (at[O_KEY_VIEWS] != NULL)) == (at[O_KEY_VALID] != NULL) &&
                    (values ^ (at[O_VALUE_VIEWS] != NULL)) == (at[O_VALUE_VALID] != NULL);
    for (int i = O_LIST_OFFSETS; i < OUTPUTS; i++)
        are_whole = are_whole && headers == (at[i] != NULL);
    if (!are_whole || (keys && at[O_KEY_VIEWS]) || (values && at[O_VALUE_VIEWS])) {
        PyErr_SetString(PyExc_ValueError, "outputs of one column belong together");
        return taken;
    }
    if (headers) {
        /* from here on: how many pairs there is room for */
        int64_t pairs = out->size[O_CONTENT_VALID] * 8;
        const int64_t names = out->size[O_NAME_OFFSETS] / 4 - 1;
        const int64_t contents = out->size[O_CONTENT_OFFSETS] / 4 - 1;
        pairs = pairs < names ? pairs : names;
        out->size[O_CONTENT_VALID] = pairs < contents ? pairs : contents;
    }
    const int bits[] = {O_KEY_VALID, O_VALUE_VALID, O_LIST_VALID};
    for (int i = 0; i < 3; i++)
        if (at[bits[i]])
            memset(at[bits[i]], 0xff, (size_t)((rows_max + 7) / 8));
    return taken;
}

PyObject *
py_decode(PyObject *self, PyObject *args) {
    PyObject *raw_object, *table_object, *state_object, *tuple;
    long long batches, rows_max, start_offset, end_offset;
    int checks_crc;
    if (!PyArg_ParseTuple(args, "OOLLLLpOO!", &raw_object, &table_object, &batches, &rows_max,
                          &start_offset, &end_offset, &checks_crc, &state_object, &PyTuple_Type,
                          &tuple))
        return NULL;
    Py_buffer raw = {0}, table = {0}, state = {0}, views[OUTPUTS];
    struct outputs out;
    struct flaw flaw = {0};
    int64_t rows = 0;
    int taken = 0;
    if (get_buffer(raw_object, &raw, 0, 1, "raw") < 0 ||
        get_buffer(table_object, &table, 0, 8, "table") < 0 ||
        get_buffer(state_object, &state, 1, 8, "state") < 0)
        goto done;
    if (rows_max < 0 || rows_max > INT32_MAX) {
        FLAW(&flaw, "%lld rows are more than an Arrow batch can have", rows_max, 0);
        goto done;
    }
    if (batches < 0 || batches > table.len / (8 * BATCH_FIELDS)) {
        FLAW(&flaw, "there are no %lld batches in a table of %lld bytes", batches, table.len);
        goto done;
    }
    int64_t *place = state.buf;
    if (state.len < 8 * STATE_FIELDS || place[S_BATCH] < 0 || place[S_DONE] < 0 ||
        place[S_POSITION] < 0 || place[S_POSITION] > raw.len) {
        FLAW(&flaw, "this is no state of a decoder", 0, 0);
        goto done;
    }
    taken = take_outputs(tuple, rows_max, views, &out);
    if (PyErr_Occurred())
        goto done;
    if ((out.at[O_KEY_VIEWS] || out.at[O_VALUE_VIEWS]) && raw.len > INT32_MAX) {
        FLAW(&flaw, "views reach no further than 2 GiB, not %lld bytes", raw.len, 0);
        goto done;
    }
    const struct rows in = {raw.buf,      raw.len,    table.buf,  batches, rows_max,
                            start_offset, end_offset, checks_crc, place};
    Py_BEGIN_ALLOW_THREADS
    rows = HAS_AVX2() ? decode_avx2(&in, &out, &flaw) : decode_plain(&in, &out, &flaw);
    Py_END_ALLOW_THREADS
done:
    while (taken)
        PyBuffer_Release(&views[--taken]);
    if (raw.obj)
        PyBuffer_Release(&raw);
    if (table.obj)
        PyBuffer_Release(&table);
    if (state.obj)
        PyBuffer_Release(&state);
    if (PyErr_Occurred())
        return NULL;
    if (flaw.text)
        return raise_flaw(&flaw);
    return PyLong_FromLongLong(rows);
}
