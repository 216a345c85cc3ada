/* CRC-32C (Castagnoli, reflected polynomial 0x82f63b78), as record batches are sealed with.
 *
 *   hardware   x86-64 with SSE 4.2 and PCLMULQDQ, asked for when the module is loaded. The crc32
 *              instruction takes 8 bytes, has a latency of 3 cycles and starts every cycle, so three
 *              neighbouring stretches are done at once and then joined: the CRC of the first one
 *              is multiplied by x^(8 * bytes behind it) modulo the polynomial.
 *   tables     elsewhere: 8 bytes a step through 8 tables of 256 words.
 *
 * Registers hold the CRC without its final inversion.
 */

#include "kernels.h"

#define POLYNOMIAL 0x82f63b78u

static uint32_t tables[8][256];

static void
make_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t x = byte;
        for (int bit = 0; bit < 8; bit++)
            x = x & 1 ? x >> 1 ^ POLYNOMIAL : x >> 1;
        tables[0][byte] = x;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int i = 1; i < 8; i++)
            tables[i][byte] = tables[i - 1][byte] >> 8 ^ tables[0][tables[i - 1][byte] & 0xff];
}

static uint32_t
by_tables(uint32_t crc, const uint8_t *p, size_t size) {
    for (; size >= 8; p += 8, size -= 8) {
        uint32_t low = load_le32(p) ^ crc, high = load_le32(p + 4);
        crc = tables[7][low & 0xff] ^ tables[6][low >> 8 & 0xff] ^ tables[5][low >> 16 & 0xff] ^
              tables[4][low >> 24] ^ tables[3][high & 0xff] ^ tables[2][high >> 8 & 0xff] ^
              tables[1][high >> 16 & 0xff] ^ tables[0][high >> 24];
    }
    for (; size; size--)
        crc = crc >> 8 ^ tables[0][(crc ^ *p++) & 0xff];
    return crc;
}

static uint32_t (*update)(uint32_t, const uint8_t *, size_t) = by_tables;

#if defined(__x86_64__)

#include <nmmintrin.h>
#include <wmmintrin.h>

#define LONG 4096 /* a stretch: three of them are 12 KiB of a usual batch of 16 */
#define SHORT 512
#define TINY 64
#define LINE 64 /* of the cache */

static uint64_t two_long, one_long, two_short, one_short, two_tiny, one_tiny;

/* x^bits modulo the polynomial, reflected: multiplied with a CRC and reduced by the crc32
 * instruction (which multiplies by x^32 itself, and the product of reflected numbers lies one bit
 * off: together 33), that is the CRC with bits / 8 more bytes of zeros behind it. */
static uint64_t
shift_by(size_t bytes) {
    uint32_t x = 1u << 31;
    for (size_t bits = 8 * bytes - 33; bits; bits--)
        x = x & 1 ? x >> 1 ^ POLYNOMIAL : x >> 1;
    return x;
}

__attribute__((target("sse4.2,pclmul"))) static inline uint64_t
product(uint32_t crc, uint64_t shift) {
    __m128i both =
        _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)crc), _mm_cvtsi64_si128((long long)shift), 0);
    return (uint64_t)_mm_cvtsi128_si64(both);
}

static inline uint64_t
load64(const uint8_t *p) {
    uint64_t x;
    memcpy(&x, p, 8);
    return x;
}

__attribute__((target("sse4.2,pclmul"))) static inline uint32_t
three(uint32_t crc, const uint8_t *p, size_t stretch, uint64_t two, uint64_t one) {
    uint64_t a = crc, b = 0, c = 0;
    /* the next three stretches, in order: who reads a file's pages does not find them in the cache,
     * and the processor looks ahead in none of the three for longer than a page */
    const char *next = (const char *)(p + 3 * stretch);
    const uint8_t *end = p + stretch - 8;
    for (; end - p >= LINE; next += 3 * LINE) {
        for (int line = 0; line < 3; line++)
            _mm_prefetch(next + line * LINE, _MM_HINT_T0);
        for (const uint8_t *line_end = p + LINE; p < line_end; p += 8) {
            a = _mm_crc32_u64(a, load64(p));
            b = _mm_crc32_u64(b, load64(p + stretch));
            c = _mm_crc32_u64(c, load64(p + 2 * stretch));
        }
    }
    for (; p < end; p += 8) {
        a = _mm_crc32_u64(a, load64(p));
        b = _mm_crc32_u64(b, load64(p + stretch));
        c = _mm_crc32_u64(c, load64(p + 2 * stretch));
    }
    /* the last 8 bytes of c are taken together with the other two */
    a = _mm_crc32_u64(a, load64(p));
    b = _mm_crc32_u64(b, load64(p + stretch));
    uint64_t joined = product((uint32_t)a, two) ^ product((uint32_t)b, one);
    return (uint32_t)_mm_crc32_u64(c, load64(p + 2 * stretch) ^ joined);
}

__attribute__((target("sse4.2,pclmul"))) static uint32_t
in_hardware(uint32_t crc, const uint8_t *p, size_t size) {
    for (; size >= 3 * LONG; p += 3 * LONG, size -= 3 * LONG)
        crc = three(crc, p, LONG, two_long, one_long);
    for (; size >= 3 * SHORT; p += 3 * SHORT, size -= 3 * SHORT)
        crc = three(crc, p, SHORT, two_short, one_short);
    for (; size >= 3 * TINY; p += 3 * TINY, size -= 3 * TINY)
        crc = three(crc, p, TINY, two_tiny, one_tiny);
    uint64_t wide = crc;
    for (; size >= 8; p += 8, size -= 8)
        wide = _mm_crc32_u64(wide, load64(p));
    crc = (uint32_t)wide;
    for (; size; size--)
        crc = _mm_crc32_u8(crc, *p++);
    return crc;
}

static int
use_hardware(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("pclmul"))
        return 0;
    two_long = shift_by(2 * LONG);
    one_long = shift_by(LONG);
    two_short = shift_by(2 * SHORT);
    one_short = shift_by(SHORT);
    two_tiny = shift_by(2 * TINY);
    one_tiny = shift_by(TINY);
    update = in_hardware;
    return 1;
}

#else

static int
use_hardware(void) {
    return 0;
}

#endif

int
crc32c_init(void) {
    make_tables();
    return use_hardware();
}

uint32_t
crc32c(uint32_t crc, const uint8_t *data, size_t size) {
    return ~update(~crc, data, size);
}
