/* The writer's side of the shared-memory ring (ring.h). */
#define _GNU_SOURCE
#include "ring.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NOEXEC_SEAL 8u /* MFD_NOEXEC_SEAL of linux/memfd.h */

static size_t ring_bytes(void) { return RING_HEADER_BYTES + (size_t)RING_SLOTS * sizeof(struct ring_slot); }

/* A low number may be one of the standard streams that the application closed, whose output would then land in the ring. */
static int move_up(int fd)
{
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, 64);
    if (moved < 0)
        moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (moved < 0 && fd > STDERR_FILENO)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return moved;
}

int ring_create(struct ring *ring)
{
    memset(ring, 0, sizeof *ring);
    /* Where vm.memfd_noexec is 2 only a memfd that can never be executed is made; before Linux 6.3 the flag is not known. */
    ring->fd = memfd_create(RING_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING | NOEXEC_SEAL);
    if (ring->fd < 0 && errno == EINVAL)
        ring->fd = memfd_create(RING_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (ring->fd >= 0)
        ring->fd = move_up(ring->fd);
    if (ring->fd < 0)
        return -errno;
    struct stat file;
    void *base = MAP_FAILED;
    if (ftruncate(ring->fd, (off_t)ring_bytes()) == 0 && fstat(ring->fd, &file) == 0 &&
        fcntl(ring->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        base = mmap(NULL, ring_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, 0);
    if (base == MAP_FAILED) {
        int error = errno;
        close(ring->fd);
        ring->fd = -1;
        return -error;
    }
    ring->device = file.st_dev;
    ring->inode = file.st_ino;
    madvise(base, ring_bytes(), MADV_DONTFORK); /* a forked child must not write as its parent */
    ring->header = base;
    ring->slot = (struct ring_slot *)((char *)base + RING_HEADER_BYTES);

    struct ring_header *header = ring->header;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    header->version = RING_VERSION;
    header->header_bytes = RING_HEADER_BYTES;
    header->slot_bytes = sizeof(struct ring_slot);
    header->slots = RING_SLOTS;
    header->pid = (uint32_t)getpid();
    header->created_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    __atomic_store_n(&header->magic, RING_MAGIC, __ATOMIC_RELEASE); /* last: a reader that sees it sees the rest */
    return 0;
}

void ring_destroy(struct ring *ring)
{
    if (ring->header)
        munmap(ring->header, ring_bytes());
    if (ring->fd >= 0)
        close(ring->fd);
    ring->header = NULL;
    ring->fd = -1;
}

int ring_has_listener(const struct ring *ring)
{
    struct stat file;
    if (fstat(ring->fd, &file) < 0 || file.st_dev != ring->device || file.st_ino != ring->inode)
        return 0; /* closed by the application: another file's locks say nothing */
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    return fcntl(ring->fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

uint64_t ring_room(const struct ring *ring)
{
    uint64_t waiting = ring->head - __atomic_load_n(&ring->header->tail, __ATOMIC_ACQUIRE);
    return waiting < RING_SLOTS ? RING_SLOTS - waiting : 0; /* a tail ahead of the head, or far behind it, is not the sampler's: full */
}

struct ring_slot *ring_next(struct ring *ring)
{
    if (ring_room(ring) == 0)
        return NULL;
    return &ring->slot[ring->head++ & (RING_SLOTS - 1)];
}

void ring_drop(struct ring *ring)
{
    __atomic_store_n(&ring->header->dropped, ring->header->dropped + 1, __ATOMIC_RELAXED);
}

void ring_publish(struct ring *ring) { __atomic_store_n(&ring->header->head, ring->head, __ATOMIC_RELEASE); }

int ring_send_text(struct ring *ring, uint8_t kind, uint32_t epoch, uint32_t id, uint32_t parent, const char *text, uint32_t length)
{
    const uint32_t step = sizeof ring->slot->text.bytes;
    if (ring_room(ring) < length / step + 2)
        return -1;
    uint32_t offset = 0;
    do {
        struct ring_slot *slot = ring_next(ring);
        if (!slot)
            return -1;
        uint32_t part = length - offset < step ? length - offset : step;
        memset(slot, 0, sizeof *slot);
        slot->kind = kind;
        slot->flags = (uint8_t)part;
        slot->epoch = epoch;
        slot->text.id = id;
        slot->text.parent = parent;
        slot->text.offset = offset;
        slot->text.total = length;
        memcpy(slot->text.bytes, text + offset, part);
        offset += part;
    } while (offset < length);
    return 0;
}

void ring_say(struct ring *ring, uint32_t state, const char *message)
{
    strncpy(ring->header->message, message, RING_TEXT - 1);
    __atomic_store_n(&ring->header->state, state, __ATOMIC_RELEASE);
}
