/* The shared-memory ring between a profiled process and the sampler.
 *
 * A memfd named "gpuprof-ring", sealed against shrinking and growing. One header page, then `slots` slots of 64 bytes. The library (one
 * writer at a time, under its mutex) fills slots and advances `head`; the sampler reads up to `head` and advances `tail`. When the ring is full the
 * newest records are dropped and counted. All numbers are little-endian. The reader trusts nothing in here: see sampler/gpu_ring.py, which
 * describes the same layout.
 *
 * The sampler shows that it lives by an open-file-description write lock on byte 0, taken on its own open file description.
 */
#ifndef GPUPROF_RING_H
#define GPUPROF_RING_H

#include <stddef.h>
#include <stdint.h>

#ifndef RING_NAME
#define RING_NAME "gpuprof-ring"
#endif
#define RING_MAGIC 0x31474e4946525047ull /* "GPRFING1" */
#define RING_VERSION 4u
#define RING_HEADER_BYTES 8192u
#define RING_SLOTS (1u << 17)
#define RING_DEVICES 32
#define RING_TEXT 256

enum ring_state {
    RING_WAITING = 0, /* no sampler listens: CUPTI is not in use */
    RING_RECORDING = 1,
    RING_DETACHING = 2, /* waiting for the next CUDA call, at whose exit CUPTI is finalized */
    RING_REFUSED = 3,   /* `message` says why; tried again later */
    RING_ENDED = 4,
    RING_PAUSED = 5, /* detached for a while, so as to stay within the budget; goes on by itself */
};

enum slot_kind {
    SLOT_KERNEL = 1,
    SLOT_MEMCPY = 2,
    SLOT_MEMSET = 3,
    SLOT_NAME = 4,  /* part of a kernel name */
    SLOT_CLOCK = 5, /* CUPTI's clock against CLOCK_MONOTONIC */
    SLOT_WAIT = 6,  /* a call in which a thread of the host waited for the device */
    SLOT_SPAN = 7,  /* a span of time that was recorded and is over */
    SLOT_PATH = 8,  /* part of the name of an NVTX range within others */
    SLOT_RANGE = 9, /* an NVTX range that has ended */
};

enum { WAIT_HAS_STREAM = 1 };

struct ring_header {
    uint64_t magic;
    uint32_t version;
    uint32_t header_bytes;
    uint32_t slot_bytes;
    uint32_t slots;
    uint32_t pid;
    uint32_t epoch; /* attaches so far; correlation ids start anew with each */
    uint32_t state;
    uint32_t cupti_version;
    uint32_t names;
    uint32_t devices;
    uint64_t created_ns;
    uint64_t launches; /* launch calls seen by the callback */
    uint64_t records;  /* records that CUPTI delivered */
    uint64_t dropped;  /* of them, those that found the ring full */
    uint64_t cupti_dropped;
    uint64_t callback_ns; /* time of the launching threads in our callback, its probes with them; partly measured */
    uint8_t uuid[RING_DEVICES][16]; /* by the process's own device ordinal; zeros: not known */
    char message[RING_TEXT];        /* why nothing is recorded, or empty */
    char library[RING_TEXT];        /* the libcupti that was opened */
    _Alignas(64) uint64_t head;     /* slots written so far */
    _Alignas(64) uint64_t tail;     /* slots read so far (the sampler's) */
    uint32_t budget_ppm;            /* the sampler's: the share of the launching threads' time that we may take; 0: no limit */
    uint64_t hold_until_ns;         /* the sampler's: CUPTI must not be taken into use before, on CLOCK_MONOTONIC */
    _Alignas(64) uint64_t stacks;   /* of the launches, those that had their stack taken */
    uint64_t cost_ns;               /* all that recording has cost the launching threads while the device waited for them */
    uint64_t waits;                 /* calls that waited for the device */
    uint64_t wait_ns;               /* time in them */
    uint64_t recording_since_ns;    /* CLOCK_MONOTONIC; 0: not recording */
    uint32_t launches_per_stack;    /* now: one launch of so many has its stack taken, by chance */
    uint32_t wait_threshold_ns;     /* now: shorter waits are kept by chance only */
    uint64_t pauses;                /* so far */
    uint64_t judged, behind;        /* launches of which it is known whether the device was behind, and those where it was */
    uint64_t ranges;                /* NVTX ranges that have ended */
    uint32_t range_depth;           /* now: ranges within so many others, less one, count as the range that they are in; 0: all are followed */
};

struct ring_slot {
    uint8_t kind;
    uint8_t flags; /* memcpy: CUpti_ActivityMemcpyKind; name, path: length of the text in this slot; wait: WAIT_HAS_STREAM */
    uint16_t device;
    uint32_t epoch;
    union {
        struct {
            uint64_t start; /* CUPTI's clock, ns */
            uint64_t end;
            uint32_t correlation;
            uint32_t stream;
            uint32_t context;
            uint32_t name; /* id of an earlier SLOT_NAME */
            uint64_t bytes_or_node; /* memcpy, memset: bytes; kernel: graph node id */
            uint32_t graph;
            uint16_t no_stack; /* 1: the stack of its launch was not taken, for want of budget */
            uint16_t path;     /* the NVTX ranges that its launch was in: id of an earlier SLOT_PATH; 0: none */
            uint64_t enter; /* CLOCK_MONOTONIC at the enter of the call that launched it; 0: not known */
        } work;
        struct { /* part of a name or of a path's name */
            uint32_t id;
            uint32_t parent; /* of a path: that of the range that it is in; 0: none */
            uint32_t offset; /* of this part; parts come in order */
            uint32_t total;
            char bytes[40];
        } text;
        struct {
            uint64_t cupti_ns;
            uint64_t mono_ns;
            uint64_t width_ns;
        } clock;
        struct {
            uint64_t start; /* CLOCK_MONOTONIC */
            uint64_t end;
            uint32_t correlation;
            uint32_t stream; /* that was waited for, as of work; where flags has WAIT_HAS_STREAM */
            uint32_t thread; /* id in the process's own pid namespace */
            uint32_t name;   /* of the API call, an id as of kernels */
            float weight;    /* how many waits of its length this one stands for */
        } wait;
        struct {
            uint64_t start; /* CLOCK_MONOTONIC */
            uint64_t end;
        } span;
        struct {
            uint64_t start; /* CLOCK_MONOTONIC */
            uint64_t end;
            uint32_t path;
            uint32_t thread; /* id in the process's own pid namespace, of the thread in which it ended */
            uint32_t weight; /* how many of this path have ended since the row before, this one included */
        } range;
    };
};

_Static_assert(sizeof(struct ring_slot) == 64, "one cache line");
_Static_assert(sizeof(struct ring_header) <= RING_HEADER_BYTES, "header");
_Static_assert(offsetof(struct ring_header, uuid) == 96, "gpu_ring.py");
_Static_assert(offsetof(struct ring_header, message) == 608, "gpu_ring.py");
_Static_assert(offsetof(struct ring_header, head) == 1152, "gpu_ring.py");
_Static_assert(offsetof(struct ring_header, tail) == 1216, "gpu_ring.py");
_Static_assert(offsetof(struct ring_header, budget_ppm) == 1224, "gpu_ring.py");
_Static_assert(offsetof(struct ring_header, hold_until_ns) == 1232, "gpu_ring.py");
_Static_assert(offsetof(struct ring_header, stacks) == 1280, "gpu_ring.py");
_Static_assert(offsetof(struct ring_header, pauses) == 1328, "gpu_ring.py");
_Static_assert(offsetof(struct ring_header, ranges) == 1352, "gpu_ring.py");
_Static_assert(offsetof(struct ring_header, range_depth) == 1360, "gpu_ring.py");

struct ring {
    int fd;
    uint64_t device, inode; /* of the memfd: the application may close descriptors that it did not open */
    struct ring_header *header;
    struct ring_slot *slot;
    uint64_t head; /* the writer's own copy: what the mapping says is not trusted back */
};

/* Creates the memfd and maps it. Returns 0 or -errno. */
int ring_create(struct ring *ring);
void ring_destroy(struct ring *ring);

/* Is the sampler holding its lock? */
int ring_has_listener(const struct ring *ring);

/* How many slots are free; a free slot to fill, or NULL when there is none; ring_drop counts a record that found none; ring_publish makes
 * everything filled so far visible. Callers hold the writer's mutex. */
uint64_t ring_room(const struct ring *ring);
struct ring_slot *ring_next(struct ring *ring);
void ring_drop(struct ring *ring);
void ring_publish(struct ring *ring);

/* Writes all parts of a text into slots of a kind (SLOT_NAME, SLOT_PATH), or none and returns -1 when there is not room for them and a record:
 * a record without its name would be misnamed. */
int ring_send_text(struct ring *ring, uint8_t kind, uint32_t epoch, uint32_t id, uint32_t parent, const char *text, uint32_t length);

void ring_say(struct ring *ring, uint32_t state, const char *message);

#endif
