/* What is known of each launch until its record comes, by correlation id (launch_notes.h). */
#define _GNU_SOURCE
#include "launch_notes.h"
#include "nvtx.h"
#include "session.h"

#define NOTES_BITS 18 /* 2^18 launches may lie between a launch and its record */
#define MARK_BITS 6   /* of a note: mark(), and whether the stack was left out; the rest of it is the time */

static uint64_t notes[1u << NOTES_BITS]; /* by correlation id: time of the enter << MARK_BITS | mark() */
static uint16_t note_paths[1u << NOTES_BITS]; /* with them: the NVTX ranges */

/* Which of the launches that share a place is meant, ids beginning anew with each attach: five bits above the one for what was left out. */
static uint64_t mark(uint32_t correlation, uint32_t epoch) { return ((correlation >> NOTES_BITS) + 11 * epoch) % 32 << 1; }

static uint64_t *place_of(uint32_t correlation) { return &notes[correlation & ((1u << NOTES_BITS) - 1)]; }

void launch_note(uint32_t correlation, uint64_t entered, int left_out)
{
    uint64_t which = mark(correlation, __atomic_load_n(&session.epoch, __ATOMIC_RELAXED));
    __atomic_store_n(&note_paths[place_of(correlation) - notes], nvtx_path(), __ATOMIC_RELAXED);
    __atomic_store_n(place_of(correlation), entered << MARK_BITS | which | (unsigned)left_out, __ATOMIC_RELEASE);
}

uint64_t launch_noted(uint32_t correlation, uint32_t epoch, uint16_t *left_out, uint16_t *path)
{
    uint64_t word = __atomic_load_n(place_of(correlation), __ATOMIC_ACQUIRE);
    int ours = (word & 62) == mark(correlation, epoch);
    *left_out = ours && (word & 1);
    *path = ours ? __atomic_load_n(&note_paths[place_of(correlation) - notes], __ATOMIC_RELAXED) : 0;
    return ours ? word >> MARK_BITS : 0;
}
