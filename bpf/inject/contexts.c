/* When CUPTI may be attached or finalized: not while a context is being made (session.h). */
#define _GNU_SOURCE
#include "session.h"

#include <dlfcn.h>

#ifndef SETTLE_NS
#define SETTLE_NS 300000000ull /* a program that makes contexts on several devices makes one after another */
#endif
#ifndef NONE_NS
#define NONE_NS 2000000000ull /* without a primary context: others cannot be asked for, and are made at the start as a rule */
#endif
#define LONG_NS 20000000ull  /* an answer that takes longer has waited for a context that was being made, which takes 100 ms (H200) */
#define STALE_NS 500000000ull /* after so long without a look it begins anew */

static struct {
    int (*get_count)(int *);
    int (*get_device)(int *, int);
    int (*get_state)(int, unsigned *, int *);
} driver;

static int load(void)
{
    static int tried;
    void *library = tried ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library) { /* the handle is kept: the functions are used as long as the process lives */
        tried = 1;
        *(void **)&driver.get_count = dlsym(library, "cuDeviceGetCount");
        *(void **)&driver.get_device = dlsym(library, "cuDeviceGet");
        *(void **)&driver.get_state = dlsym(library, "cuDevicePrimaryCtxGetState");
    }
    return driver.get_count && driver.get_device && driver.get_state;
}

/* A bit for each device whose primary context is active; 0 on success. */
static int active_contexts(uint64_t *mask)
{
    int count = 0;
    *mask = 0;
    if (driver.get_count(&count) != 0)
        return -1;
    for (int i = 0; i < count && i < 64; i++) {
        int device, active = 0;
        unsigned flags;
        if (driver.get_device(&device, i) == 0 && driver.get_state(device, &flags, &active) == 0 && active)
            *mask |= 1ull << i;
    }
    return 0;
}

int contexts_are_settled(void)
{
    static uint64_t known, since_ns, looked_ns;
    uint64_t began = now_ns(), mask;
    if (!load())
        return 1; /* a driver that cannot be asked */
    int failed = active_contexts(&mask) < 0; /* the driver is still initializing */
    uint64_t now = now_ns();
    if (failed || mask != known || now - began >= LONG_NS || began - looked_ns >= STALE_NS)
        since_ns = now;
    known = mask;
    looked_ns = now;
    return !failed && now - since_ns >= (mask ? SETTLE_NS : NONE_NS);
}
