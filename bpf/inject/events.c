/* Which stream an event was last recorded in (events.h).
 *
 * A table of single words, so that no reader sees half of one: the hash of an event chooses the word, and further bits of the hash stand in it
 * beside the stream. Two events that share a place push each other out, and a wait for the one that lost it has no stream; with 4096 places
 * and 500 events in use that happens to one wait in nine. A handle is never looked into, so that one that is stale or nonsense is only not found; one
 * that a new event has taken over says the old event's stream until the new one is recorded, which a wait for it does not wait for.
 * An event that a graph records is not seen here. */
#include "events.h"

#include <stddef.h>

#define PLACES 4096u
#define STREAM_BITS 32

static uint64_t places[PLACES]; /* 0: free; atomic */
static uint32_t generation;     /* part of the hash: what an earlier one noted is not found; atomic */

static uint64_t hash_of(const void *event)
{
    uint64_t x = (uint64_t)(uintptr_t)event + (uint64_t)__atomic_load_n(&generation, __ATOMIC_RELAXED) * 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static uint64_t *place_of(uint64_t hash) { return &places[hash % PLACES]; }

/* Never 0, which is a free place. */
static uint64_t tag_of(uint64_t hash) { return hash >> STREAM_BITS | 1; }

void events_recorded(const void *event, uint32_t stream)
{
    uint64_t hash = hash_of(event);
    __atomic_store_n(place_of(hash), tag_of(hash) << STREAM_BITS | stream, __ATOMIC_RELAXED);
}

int events_stream(const void *event, uint32_t *stream)
{
    uint64_t hash = hash_of(event), word = __atomic_load_n(place_of(hash), __ATOMIC_RELAXED);
    *stream = (uint32_t)word;
    return word >> STREAM_BITS == tag_of(hash);
}

void events_forget(void) { __atomic_fetch_add(&generation, 1, __ATOMIC_RELAXED); }
