// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// A frame that no rule describes (hand-written assembly): look up the stack for a return address. A word counts as one when
// it points into code with unwind rules, right behind a call instruction. Such a frame is a guess and is flagged.

#define SCAN_WORDS 64  // read at once, by one program
#define SCAN_WINDOW 4096
#define MAX_SCANS 4
#define MAX_SAVED_RBP_DISTANCE 0x40000

// A saved frame pointer is usually pushed just below the return address; take the nearest word that could be one.
static __always_inline void guess_frame_pointer(struct walk *w, u32 at, u64 return_slot) {
#pragma unroll
    for (u32 back = 1; back < 9; back++) {
        if (at < back)
            return;
        u32 n = at - back;
        BOUND(n, 63);
        u64 word = w->scan[n];
        if (word > return_slot && word < return_slot + MAX_SAVED_RBP_DISTANCE && !(word & 7)) {
            w->bp = word;
            return;
        }
    }
}

static __always_inline int is_return_address(struct walk *w, u64 word) {
    if (word < 0x10000 || word >> MAX_ADDRESS_BITS)
        return 0;
    int index = find_mapping(w, word - 1);
    if (index < 0)
        return 0;
    struct unwind_mapping *m = unwind_mappings.lookup(&index);
    return m && m->kind == MAPPING_TABLE && follows_call(word);
}

#define SCAN_FOUND 1
#define SCAN_MORE 0
#define SCAN_NOTHING (-1)

// The next SCAN_WORDS words above w->scan_offset.
static __always_inline int scan_stack(struct walk *w) {
    u64 base = w->sp + w->scan_offset;
    if (w->scan_offset >= SCAN_WINDOW || bpf_probe_read_user(w->scan, SCAN_WORDS * 8, (void *)base))
        return SCAN_NOTHING;
    w->found = SCAN_WORDS;
#pragma clang loop unroll(disable)
    for (int i = 0; i < SCAN_WORDS; i++) {
        u32 n = i;
        BOUND(n, 63);
        if (is_return_address(w, w->scan[n])) {
            w->found = n;
            break;
        }
    }
    u32 n = w->found;  // out of memory, so that what follows is verified once and not for every word
    if (n >= SCAN_WORDS) {
        w->scan_offset += SCAN_WORDS * 8;
        return SCAN_MORE;
    }
    BOUND(n, 63);
    u64 slot = base + 8 * n;
    w->pc = w->scan[n];
    guess_frame_pointer(w, n, slot);
    w->sp = slot + 8;
    w->leaf = 0;
    return SCAN_FOUND;
}
