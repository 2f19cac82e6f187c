// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// A frame that no rule describes (hand-written assembly): look up the stack for a return address. A word counts as
// one when it points into code with unwind rules, right behind a call instruction that may have led here. Such a
// frame is a guess and is flagged. A frame's unused part may hold return addresses of earlier calls: a guess from
// which the walk does not get far is taken back, and the scan goes on behind it.

#define SCAN_WORDS 64  // read at once, by one program
#define SCAN_WINDOW 4096
#define MAX_SCANS 4
#define SHORT_WALK 4  // frames: a walk that ends sooner after a guess shows that it was wrong
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

// Does a procedure linkage stub begin here: jmp *disp32(rip), perhaps behind endbr64 and with a bnd prefix?
static __always_inline int is_linkage_stub(u64 address) {
    u64 code = 0;
    if (bpf_probe_read_user(&code, 8, (void *)address))
        return 0;
    if ((u32)code == 0xfa1e0ff3)  // endbr64
        code >>= 32;
    if ((code & 0xff) == 0xf2)
        code >>= 8;
    return (code & 0xffff) == 0x25ff;
}

#define NOT_A_CALL 0
#define MAY_BE_THE_CALL 1  // indirect, or through a linkage stub
#define IS_THE_CALL 2      // direct, to the code that we are in
#define MAX_FUNCTION_BYTES 0x10000

// Is this word the return address of a call that leads to w->scan_pc?
static __always_inline int judge_return_address(struct walk *w, u64 word) {
    if (word < 0x10000 || word >> MAX_ADDRESS_BITS)
        return NOT_A_CALL;
    struct unwind_mapping *m = &w->looked_up;
    int known = find_mapping(w, word - 1, m);
    // Where nothing is published the word's mapping may just not have been asked for yet: the next step will.
    if (known ? m->kind != MAPPING_TABLE : w->tables.count != 0)
        return NOT_A_CALL;
    u64 before = 0;
    if (bpf_probe_read_user(&before, 8, (void *)(word - 8)))
        return NOT_A_CALL;
    if ((u8)(before >> 24) != 0xe8)
        return follows_call(word) ? MAY_BE_THE_CALL : NOT_A_CALL;
    u64 target = word + (s64)(s32)(before >> 32);
    u64 pc = w->scan_pc;
    if ((!known || (pc >= m->start && pc < m->end)) && pc - target < MAX_FUNCTION_BYTES)
        return IS_THE_CALL;
    return is_linkage_stub(target) ? MAY_BE_THE_CALL : NOT_A_CALL;
}

#define SCAN_FOUND 1
#define SCAN_MORE 0
#define SCAN_NOTHING (-1)

// Remember where the walk stands, so that a wrong guess can be taken back.
static __always_inline void scan_begin(struct walk *w, int reason) {
    w->scans++;
    w->scan_sp = w->sp;
    w->scan_bp = w->bp;
    w->scan_pc = w->pc - (w->leaf ? 0 : 1);
    w->scan_offset = 0;
    w->scan_second = SCAN_WINDOW;
    w->take_second = 0;
    w->guess_user = w->record.header.n_user;
    w->guess_words = w->n_words;
    w->guess_reason = reason;
}

// Drop the frames that followed from the guess.
static __always_inline void take_back_guess(struct walk *w) {
    w->record.header.n_user = w->guess_user;
    w->n_words = w->guess_words;
    w->sp = w->scan_sp;
    w->bp = w->scan_bp;
    w->previous_sp = w->scan_sp;
}

// Looks at the next SCAN_WORDS words above scan_sp + scan_offset. A direct call of the code that we are in is taken
// at once; the first other candidate only when the whole window has no such call.
static __always_inline int scan_stack(struct walk *w) {
    u64 offset = w->scan_offset, base = w->scan_sp + offset;
    int readable = offset < SCAN_WINDOW && !bpf_probe_read_user(w->scan, SCAN_WORDS * 8, (void *)base);
    if (!readable) {
        if (w->take_second || w->scan_second >= SCAN_WINDOW)
            return SCAN_NOTHING;
        w->take_second = 1;
        w->scan_offset = w->scan_second;
        return SCAN_MORE;
    }
    w->found = SCAN_WORDS;
#pragma clang loop unroll(disable)
    for (int i = 0; i < SCAN_WORDS; i++) {
        u32 n = i;
        BOUND(n, 63);
        int judgement = judge_return_address(w, w->scan[n]);
        if (judgement == MAY_BE_THE_CALL && !w->take_second) {
            if (w->scan_second >= SCAN_WINDOW)
                w->scan_second = offset + 8 * n;
        } else if (judgement != NOT_A_CALL) {
            w->found = n;
            break;
        }
    }
    u32 n = w->found;  // out of memory, so that what follows is verified once and not for every word
    if (n >= SCAN_WORDS) {
        w->scan_offset = offset + SCAN_WORDS * 8;
        return SCAN_MORE;
    }
    BOUND(n, 63);
    u64 slot = base + 8 * n;
    w->scan_offset = offset + 8 * n + 8;
    w->pc = w->scan[n];
    guess_frame_pointer(w, n, slot);
    w->sp = slot + 8;
    w->leaf = 0;
    w->guessed = 1;
    return SCAN_FOUND;
}
