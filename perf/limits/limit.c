/* The unavoidable, and nothing else: programs that the broker's figures are divided by.
 *
 *   limit serve KIND DIRECTORY      prints its port, and answers like a broker of one partition
 *
 *     write      receive a Produce, write its batch to a fresh file, answer
 *     check      the same with CRC-32C before the write
 *     copies     check, and two copies of the batch into other files by the kernel
 *     wakeups    receive into shared memory, wake another process, which wakes this one; answer
 *     spin       the same, but both look at the memory until something is there
 *     sendfile   as write; answers Fetch from the page cache with sendfile
 *
 *   limit bare DIRECTORY            prints lines "name value": the machine alone
 *   limit store DIRECTORY BYTES     the same: ways to append batches of so many bytes to a file
 *
 *     pwrite             to a file that grows
 *     pwrite_allocated   to extents of 16 MiB that fallocate has made
 *     map_faults         stored into a map of such an extent, each page at its first store
 *     map_populate       after MADV_POPULATE_WRITE of each MiB
 *     map_zeros          after zeros were written to each MiB by pwrite, and MADV_POPULATE_WRITE
 *     map_huge           as map_populate, after MADV_HUGEPAGE of the extent
 *
 * Rules of this file:
 * - One process, one thread, blocking sockets: a connection at a time is read until it has no whole
 *   frame, found by epoll. No queue, no checks of what is not needed to answer, no second partition.
 * - Of Kafka's protocol what perf/driver.py sends: CreateTopics 7, DeleteTopics 6, ListOffsets 6,
 *   Produce 9, Fetch 11; all frames from programs of this directory, and trusted.
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <nmmintrin.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <netinet/tcp.h>
#include <time.h>
#include <unistd.h>

enum { FRAME_MAX = 8 << 20, CONNECTIONS_MAX = 1024, BATCHES_MAX = 8 << 20 };

static void die(const char *what) {
    perror(what);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* ── CRC-32C: three stretches at once, joined by multiplication modulo the polynomial ─────────── */

static uint32_t crc_plain(uint32_t crc, const uint8_t *p, size_t n) {
    uint64_t c = crc;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        c = _mm_crc32_u64(c, word);
    }
    while (n--)
        c = _mm_crc32_u8((uint32_t)c, *p++);
    return (uint32_t)c;
}

enum { STRETCH = 4096 };
static uint32_t shift_table[4][256];

static void make_shift_table(void) {
    static uint8_t zeros[STRETCH];
    for (int byte = 0; byte < 4; byte++)
        for (uint32_t value = 0; value < 256; value++)
            shift_table[byte][value] = crc_plain(value << (8 * byte), zeros, STRETCH);
}

static uint32_t shifted(uint32_t crc) {
    return shift_table[0][crc & 255] ^ shift_table[1][crc >> 8 & 255] ^
           shift_table[2][crc >> 16 & 255] ^ shift_table[3][crc >> 24];
}

static uint32_t crc32c(const uint8_t *p, size_t n) {
    uint32_t crc = ~0u;
    while (n >= 3 * STRETCH) {
        uint64_t a = crc, b = 0, c = 0, x, y, z;
        for (size_t at = 0; at < STRETCH; at += 8) {
            memcpy(&x, p + at, 8);
            memcpy(&y, p + STRETCH + at, 8);
            memcpy(&z, p + 2 * STRETCH + at, 8);
            a = _mm_crc32_u64(a, x);
            b = _mm_crc32_u64(b, y);
            c = _mm_crc32_u64(c, z);
        }
        crc = shifted(shifted((uint32_t)a) ^ (uint32_t)b) ^ (uint32_t)c;
        p += 3 * STRETCH;
        n -= 3 * STRETCH;
    }
    return ~crc_plain(crc, p, n);
}

/* ── numbers ─────────────────────────────────────────────────────────────────────────────────── */

static uint16_t get16(const uint8_t *p) { return p[0] << 8 | p[1]; }
static uint32_t get32(const uint8_t *p) { return (uint32_t)get16(p) << 16 | get16(p + 2); }
static uint64_t get64(const uint8_t *p) { return (uint64_t)get32(p) << 32 | get32(p + 4); }
static uint8_t *put(uint8_t *p, int bytes, uint64_t value) {
    for (int at = bytes - 1; at >= 0; at--, value >>= 8)
        p[at] = (uint8_t)value;
    return p + bytes;
}
static uint32_t uvarint(const uint8_t **p) {
    uint32_t value = 0;
    for (int shift = 0;; shift += 7) {
        uint8_t byte = *(*p)++;
        value |= (uint32_t)(byte & 127) << shift;
        if (byte < 128)
            return value;
    }
}

/* ── the log, of one partition ───────────────────────────────────────────────────────────────── */

static const char *kind;
static int files[3] = {-1, -1, -1};
static char paths[3][4096];
static off_t file_end;
static int64_t next_offset;
static struct place {
    int64_t offset;
    off_t position;
} *places;
static size_t place_count;

static void begin_log(const char *directory) {
    int count = strcmp(kind, "copies") ? 1 : 3;
    for (int at = 0; at < count; at++) {
        snprintf(paths[at], sizeof paths[at], "%s/limit-%d-%d.log", directory, getpid(), at);
        if (files[at] >= 0)
            close(files[at]);
        files[at] = open(paths[at], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (files[at] < 0)
            die(paths[at]);
    }
    file_end = 0;
    next_offset = 0;
    place_count = 0;
}

static int has_kind(const char *name) { return !strcmp(kind, name); }

static int64_t append(uint8_t *batch, size_t size) {
    if (has_kind("check") || has_kind("copies"))
        if (crc32c(batch + 21, size - 21) != get32(batch + 17))
            return -1;
    int64_t base = next_offset;
    put(batch, 8, base);
    if (pwrite(files[0], batch, size, file_end) != (ssize_t)size)
        die("pwrite");
    if (has_kind("copies"))
        for (int at = 1; at < 3; at++)
            for (off_t from = file_end, to = file_end; from < file_end + (off_t)size;)
                if (copy_file_range(files[0], &from, files[at], &to, file_end + size - from, 0) <= 0)
                    die("copy_file_range");
    if (place_count == BATCHES_MAX)
        die("too many batches");
    places[place_count++] = (struct place){base, file_end};
    file_end += size;
    next_offset += get32(batch + 57);
    return base;
}

static off_t position_of(int64_t offset) {
    size_t low = 0, high = place_count;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (places[middle].offset <= offset)
            low = middle;
        else
            high = middle;
    }
    return place_count ? places[low].position : 0;
}

/* ── two processes ───────────────────────────────────────────────────────────────────────────── */

static struct shared {
    volatile uint64_t asked __attribute__((aligned(64)));
    volatile uint64_t answered __attribute__((aligned(64)));
    volatile int64_t base;
    uint32_t size;
    uint8_t batch[FRAME_MAX];
} *shared;
static int ask_fd, answer_fd;

static void wait_for(volatile uint64_t *word, uint64_t value, int fd) {
    uint64_t count;
    if (has_kind("spin"))
        while (*word < value)
            __builtin_ia32_pause();
    else
        while (*word < value)
            if (read(fd, &count, 8) < 0 && errno != EINTR)
                die("read of an eventfd");
}

static void wake(int fd) {
    uint64_t one = 1;
    if (!has_kind("spin") && write(fd, &one, 8) != 8)
        die("write of an eventfd");
}

static void start_other(void) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        die("mmap");
    ask_fd = eventfd(0, EFD_CLOEXEC);
    answer_fd = eventfd(0, EFD_CLOEXEC);
    if (fork())
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (uint64_t turn = 1;; turn++) {
        wait_for(&shared->asked, turn, ask_fd);
        shared->base = next_offset++;
        shared->answered = turn;
        wake(answer_fd);
    }
}

static int64_t hand_over(const uint8_t *batch, size_t size) {
    static uint64_t turn;
    memcpy(shared->batch, batch, size);
    shared->size = (uint32_t)size;
    shared->asked = ++turn;
    wake(ask_fd);
    wait_for(&shared->answered, turn, answer_fd);
    return shared->base;
}

/* ── requests ────────────────────────────────────────────────────────────────────────────────── */

static uint8_t answer[1 << 16];

static void send_all(int fd, const uint8_t *p, size_t n, int flags) {
    while (n) {
        ssize_t sent = send(fd, p, n, flags | MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR)
            return;
        if (sent > 0)
            p += sent, n -= sent;
    }
}

static void send_answer(int fd, uint8_t *end, size_t more) {
    put(answer, 4, end - answer - 4 + more);
    send_all(fd, answer, end - answer, more ? MSG_MORE : 0);
}

static uint8_t *put_name(uint8_t *to, const uint8_t *name, uint32_t size) {
    *to++ = (uint8_t)(size + 1); /* names of this directory's topics are short */
    memcpy(to, name, size);
    return to + size;
}

/* One frame, without its size: the answer is sent. */
static void serve_frame(int fd, uint8_t *frame) {
    uint16_t key = get16(frame);
    const uint8_t *p = frame + 8;
    int16_t client = (int16_t)get16(p);
    p += 2 + (client > 0 ? client : 0);
    uint8_t *to = put(answer + 4, 4, get32(frame + 4));
    if (key == 1) { /* Fetch 11 */
        p += 4 + 4 + 4 + 4 + 1 + 4 + 4 + 4;
        uint16_t name = get16(p);
        const uint8_t *topic = p;
        p += 2 + name + 4;
        uint32_t index = get32(p);
        int64_t offset = (int64_t)get64(p + 8);
        size_t length = get32(p + 24);
        off_t position = position_of(offset);
        if (offset >= next_offset)
            position = file_end;
        if (position + (off_t)length > file_end)
            length = file_end - position;
        to = put(to, 4 + 2 + 4, 0);
        to = put(to, 4, 1);
        memcpy(to, topic, 2 + name);
        to += 2 + name;
        to = put(to, 4, 1);
        to = put(to, 4, index);
        to = put(to, 2, 0);
        to = put(to, 8, next_offset);
        to = put(to, 8, next_offset);
        to = put(to, 8, 0);
        to = put(to, 4, 0xffffffff);
        to = put(to, 4, 0xffffffff);
        to = put(to, 4, length);
        send_answer(fd, to, length);
        while (length) {
            ssize_t sent = sendfile(fd, files[0], &position, length);
            if (sent <= 0 && errno != EINTR)
                return;
            if (sent > 0)
                length -= sent;
        }
        return;
    }
    p++; /* no tags in a header */
    *to++ = 0;
    if (key == 0) { /* Produce 9 */
        p += 1 + 2 + 4 + 1;
        uint32_t name = uvarint(&p) - 1;
        const uint8_t *topic = p;
        p += name + 1;
        uint32_t index = get32(p);
        p += 4;
        uint32_t length = uvarint(&p) - 1;
        uint8_t *batch = (uint8_t *)p;
        int64_t base = shared ? hand_over(batch, length) : append(batch, length);
        *to++ = 2;
        to = put_name(to, topic, name);
        *to++ = 2;
        to = put(to, 4, index);
        to = put(to, 2, base < 0 ? 2 : 0);
        to = put(to, 8, base);
        to = put(to, 8, -1);
        to = put(to, 8, 0);
        memcpy(to, "\1\0\0\0\0\0\0\0\0", 9);
        send_answer(fd, to + 9, 0);
        return;
    }
    uint32_t name;
    if (key == 2) { /* ListOffsets 6 */
        p += 4 + 1 + 1;
        name = uvarint(&p) - 1;
        to = put(to, 4, 0);
        *to++ = 2;
        to = put_name(to, p, name);
        *to++ = 2;
        to = put(to, 4 + 2, 0);
        to = put(to, 8, -1);
        to = put(to, 8, next_offset);
        to = put(to, 4, 0);
        memcpy(to, "\0\0\0", 3);
        send_answer(fd, to + 3, 0);
        return;
    }
    p++;
    name = uvarint(&p) - 1;
    to = put(to, 4, 0);
    *to++ = 2;
    to = put_name(to, p, name);
    to = put(to, 16 + 2, 0); /* topic id, no error */
    *to++ = 0;
    if (key == 19) { /* CreateTopics 7: a fresh file */
        begin_log(".");
        to = put(to, 4, 1);
        to = put(to, 2, 1);
        *to++ = 1;
    }
    *to++ = 0;
    *to++ = 0;
    send_answer(fd, to, 0);
}

/* ── connections ─────────────────────────────────────────────────────────────────────────────── */

static uint8_t *buffers[CONNECTIONS_MAX];
static size_t filled[CONNECTIONS_MAX];

/* Read once, serve what is whole; 0 if the client has left. */
static int serve_connection(int fd) {
    if (!buffers[fd] && !(buffers[fd] = malloc(FRAME_MAX)))
        die("malloc");
    uint8_t *buffer = buffers[fd];
    ssize_t count = recv(fd, buffer + filled[fd], FRAME_MAX - filled[fd], 0);
    if (count <= 0) {
        filled[fd] = 0;
        close(fd);
        return 0;
    }
    size_t end = filled[fd] + count, at = 0;
    while (end - at >= 4 && end - at - 4 >= get32(buffer + at)) {
        size_t size = get32(buffer + at);
        serve_frame(fd, buffer + at + 4);
        at += 4 + size;
    }
    memmove(buffer, buffer + at, end - at);
    filled[fd] = end - at;
    return 1;
}

static void serve(void) {
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (void *)&address, size) || listen(listener, 128))
        die("listen");
    getsockname(listener, (void *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    int poller = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, ready[64];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int count = epoll_wait(poller, ready, 64, -1);
        for (int at = 0; at < count; at++) {
            if (ready[at].data.fd != listener) {
                serve_connection(ready[at].data.fd);
                continue;
            }
            int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
            if (fd < 0 || fd >= CONNECTIONS_MAX)
                die("accept");
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            event.data.fd = fd;
            epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
        }
    }
}

/* ── the machine alone ───────────────────────────────────────────────────────────────────────── */

static void tell(const char *name, double value) { printf("%s %.4g\n", name, value); }

static int fresh_file(const char *directory, size_t allocated) {
    char path[4096];
    snprintf(path, sizeof path, "%s/limit-bare-%d", directory, getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        die(path);
    unlink(path);
    if (allocated && posix_fallocate(fd, 0, allocated))
        die("posix_fallocate");
    return fd;
}

enum { BARE = 256 << 20, PIECE = 1 << 20 };

static void bare_wakeups(void) {
    int there = eventfd(0, 0), back = eventfd(0, 0);
    uint64_t count = 1;
    enum { TURNS = 20000 };
    pid_t child = fork();
    if (!child) {
        for (int turn = 0; turn < TURNS; turn++)
            if (read(there, &count, 8) != 8 || write(back, &count, 8) != 8)
                _exit(1);
        _exit(0);
    }
    double begin = now();
    for (int turn = 0; turn < TURNS; turn++)
        if (write(there, &count, 8) != 8 || read(back, &count, 8) != 8)
            die("eventfd");
    tell("two_wakeups_us", (now() - begin) / TURNS * 1e6);
    waitpid(child, NULL, 0);
}

static void bare_memory(void) {
    uint8_t *from = malloc(BARE), *to = malloc(BARE);
    memset(from, 1, BARE);
    memset(to, 2, BARE);
    double begin = now();
    memcpy(to, from, BARE);
    tell("memcpy_gb_s", BARE / (now() - begin) / 1e9);
    begin = now();
    for (int turn = 0; turn < 2000; turn++)
        memcpy(to, from, 128 << 10);
    tell("memcpy_in_cache_gb_s", 2000.0 * (128 << 10) / (now() - begin) / 1e9);
    volatile uint32_t sum = 0;
    begin = now();
    for (size_t at = 0; at < BARE; at += PIECE)
        sum += crc32c(from + at, PIECE);
    tell("crc32c_gb_s", BARE / (now() - begin) / 1e9);
    begin = now();
    for (int turn = 0; turn < 2000; turn++)
        sum += crc32c(from, 128 << 10);
    tell("crc32c_in_cache_gb_s", 2000.0 * (128 << 10) / (now() - begin) / 1e9);
    free(from);
    free(to);
}

static void bare_file(const char *directory, const char *where) {
    char name[128];
    uint8_t *from = malloc(PIECE);
    memset(from, 1, PIECE);
    static const char *const ways[] = {"touch", "populate_write", "huge_populate_write"};
    for (int allocated = 0; allocated < 2; allocated++) {
        int fd = fresh_file(directory, allocated ? BARE : 0);
        double begin = now();
        for (off_t at = 0; at < BARE; at += PIECE)
            if (pwrite(fd, from, PIECE, at) != PIECE)
                die("pwrite");
        snprintf(name, sizeof name, "%s_pwrite_%s_gb_s", where, allocated ? "allocated" : "fresh");
        tell(name, BARE / (now() - begin) / 1e9);
        close(fd);
    }
    for (int way = 0; way < 3; way++) {
        int fd = fresh_file(directory, BARE);
        uint8_t *map = mmap(NULL, BARE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
            die("mmap");
        double begin = now();
        if (way == 2)
            madvise(map, BARE, MADV_HUGEPAGE);
        if (way && madvise(map, BARE, 23 /* MADV_POPULATE_WRITE */))
            way = 3; /* not here */
        for (size_t at = 0; at < BARE && way < 3; at += PIECE)
            memcpy(map + at, from, PIECE);
        if (way < 3) {
            snprintf(name, sizeof name, "%s_map_%s_gb_s", where, ways[way]);
            tell(name, BARE / (now() - begin) / 1e9);
        }
        munmap(map, BARE);
        close(fd);
    }
    free(from);
}

/* ── ways to append to a file ─────────────────────────────────────────────────────────────────── */

enum { EXTENT = 16 << 20, STORED = 256 << 20, READY = 1 << 20 };
enum way { AS_WRITTEN, AS_WRITTEN_ALLOCATED, AS_FAULTS, AS_POPULATED, AS_ZEROS, AS_HUGE, WAYS };
static const char *const way_names[WAYS] = {
    "pwrite", "pwrite_allocated", "map_faults", "map_populate", "map_zeros", "map_huge",
};

static double cpu(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* The map of the extent at `at`; nothing of it is ready yet. */
static uint8_t *extent_of(int fd, off_t at, enum way way) {
    if (posix_fallocate(fd, at, EXTENT))
        die("fallocate");
    if (way == AS_WRITTEN_ALLOCATED)
        return NULL;
    /* Where the kernel is to use huge pages, addresses must be as the file's offsets. */
    uint8_t *room = mmap(NULL, EXTENT + (2 << 20), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED)
        die("mmap");
    uint8_t *start = (uint8_t *)(((uintptr_t)room + (2 << 20) - 1) & -(uintptr_t)(2 << 20));
    munmap(room, EXTENT + (2 << 20));
    uint8_t *map = mmap(start, EXTENT, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, at);
    if (map == MAP_FAILED)
        die("mmap");
    if (way == AS_HUGE)
        madvise(map, EXTENT, MADV_HUGEPAGE);
    return map;
}

static void make_ready(int fd, uint8_t *map, off_t at, size_t ready, enum way way,
                       const uint8_t *zeros) {
    if (way == AS_ZEROS && pwrite(fd, zeros, READY, at + ready) != READY)
        die("pwrite");
    if (way >= AS_POPULATED && madvise(map + ready, READY, 23 /* MADV_POPULATE_WRITE */))
        die("madvise");
}

static void store(const char *directory, size_t bytes, enum way way) {
    uint8_t *batch = malloc(bytes), *zeros = calloc(1, READY), *map = NULL;
    memset(batch, 1, bytes);
    int fd = fresh_file(directory, 0);
    size_t count = STORED / bytes, ready = 0;
    off_t start = -EXTENT; /* of the extent */
    if (count > 1 << 18)
        count = 1 << 18;
    double begin = now(), spent = cpu();
    for (size_t n = 0; n < count; n++) {
        off_t at = (off_t)n * bytes;
        size_t left = bytes;
        while (left) { /* a batch may lie in two extents */
            if (way != AS_WRITTEN && at >= start + EXTENT) {
                if (map)
                    munmap(map, EXTENT);
                start += EXTENT;
                map = extent_of(fd, start, way);
                ready = 0;
            }
            size_t piece = left;
            if (way != AS_WRITTEN && piece > (size_t)(start + EXTENT - at))
                piece = start + EXTENT - at;
            if (way <= AS_WRITTEN_ALLOCATED) {
                if (pwrite(fd, batch, piece, at) != (ssize_t)piece)
                    die("pwrite");
            } else {
                for (; ready < at - start + piece; ready += READY)
                    make_ready(fd, map, start, ready, way, zeros);
                memcpy(map + (at - start), batch, piece);
            }
            at += piece;
            left -= piece;
        }
    }
    spent = cpu() - spent;
    double took = now() - begin;
    char name[64];
    snprintf(name, sizeof name, "%s_ns", way_names[way]);
    tell(name, took / count * 1e9);
    snprintf(name, sizeof name, "%s_cpu_ns", way_names[way]);
    tell(name, spent / count * 1e9);
    if (map)
        munmap(map, EXTENT);
    close(fd);
    free(batch);
    free(zeros);
}

int main(int count, char **words) {
    make_shift_table();
    if (count == 3 && !strcmp(words[1], "bare")) {
        bare_wakeups();
        bare_memory();
        bare_file(words[2], "data");
        bare_file("/dev/shm", "tmpfs");
        return 0;
    }
    if (count == 4 && !strcmp(words[1], "store")) {
        for (enum way way = 0; way < WAYS; way++)
            store(words[2], strtoul(words[3], NULL, 10), way);
        return 0;
    }
    if (count != 4 || strcmp(words[1], "serve")) {
        fprintf(stderr, "limit serve KIND DIRECTORY | bare DIRECTORY | store DIRECTORY BYTES\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    kind = words[2];
    if (chdir(words[3]))
        die(words[3]);
    places = mmap(NULL, BATCHES_MAX * sizeof *places, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (places == MAP_FAILED)
        die("mmap");
    begin_log(".");
    if (has_kind("wakeups") || has_kind("spin"))
        start_other();
    serve();
}
