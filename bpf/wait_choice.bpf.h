// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Which of a thread's short waits are sent: each with probability duration / threshold, and all of them together nearly
// as often as they should be.
//
// The lengths of a thread's short waits are laid end to end, in units of the threshold. In each unit lies one point, at a
// place drawn at random, and the waits in which the points lie are sent. What a thread waited in all is then known to
// within about one threshold, however many waits there were; drawn one by one, their number would go up and down with
// its square root. Points at regular distances would do as well for the sum, but could hit the same wait of each turn of
// a loop.

#define UNIT_BITS 31
#define UNIT (1ull << UNIT_BITS)

static __always_inline u32 place_in_unit(void) { return bpf_get_prandom_u32() >> (32 - UNIT_BITS); }

static __always_inline void begin_choice(struct wait *wait) {
    wait->laid = 0;
    wait->point = place_in_unit();
    wait->next_point = place_in_unit();
}

// How long a wait that begins now must be at least to be sent.
static __always_inline u64 bar_of_choice(struct wait *wait) {
    u64 way = wait->point >= wait->laid ? wait->point - wait->laid : UNIT - wait->laid + wait->next_point;
    u64 bar_ns = wait->threshold_ns * way >> UNIT_BITS;
    return bar_ns < wait->threshold_ns ? bar_ns : wait->threshold_ns;
}

// Lays a wait that was shorter than the threshold down behind those before it; how many points lie in it, up to two.
static __always_inline u32 points_in(struct wait *wait, u64 duration_ns) {
    u64 from = wait->laid, to = from + (duration_ns << UNIT_BITS) / wait->threshold_ns;
    u32 points = wait->point >= from && wait->point < to;
    if (to >= UNIT) {
        to -= UNIT;
        wait->point = wait->next_point;
        wait->next_point = place_in_unit();
        points += wait->point < to;
    }
    wait->laid = to;
    return points;
}
