// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// One native frame: program counter -> mapping -> unwind rule -> the caller's registers.

#define MAX_ADDRESS_BITS 47
#define RT_SIGFRAME_REGISTERS 40  // rt_sigframe: return address, then ucontext, whose registers begin at 40
#define MAX_FRAME_POINTER_STEP 0x100000

// Copies the mapping that holds the address to `out`; 0 when none that is known here does.
static __always_inline int find_mapping(struct walk *w, u64 address, struct unwind_mapping *out) {
#pragma clang loop unroll(disable)
    for (u32 i = 0; i < 8; i++) {
        u32 n = i;
        if (n >= w->n_local)
            break;
        BOUND(n, 7);
        if (address >= w->local[n].start && address < w->local[n].end) {
            *out = w->local[n];
            return 1;
        }
    }
    w->low = w->tables.first + 1;
    w->high = w->tables.first + 1 + w->tables.count;
#pragma clang loop unroll(disable)
    for (int i = 0; i < 12; i++) {
        u32 low = w->low, high = w->high;
        if (low >= high)
            break;
        int middle = (low + high) >> 1;
        struct unwind_mapping *m = unwind_mappings.lookup(&middle);
        if (!m)
            return 0;
        if (m->start <= address)
            w->low = middle + 1;
        else
            w->high = middle;
    }
    u32 low = w->low;
    if (low == w->tables.first + 1)
        return 0;
    int found = low - 1;
    struct unwind_mapping *m = unwind_mappings.lookup(&found);
    if (!m || address >= m->end)
        return 0;
    *out = *m;
    return 1;
}

// The rule of the last row at or below the linked address; CFA_NONE when the binary has none there.
static __always_inline int find_rule_in_table(struct walk *w, u64 pc, struct unwind_rule *rule) {
    struct unwind_mapping *m = &w->current;
    u64 linked = pc - m->bias;
    u32 page = (u32)(linked >> 16) - m->first_page;
    if (page >= m->pages)
        return STEP_NEXT;
    int page_index = page + m->page_base;
    struct unwind_page *p = unwind_pages.lookup(&page_index);
    if (!p)
        return STOP_INTERNAL;
    w->low = p->first;
    w->high = p->last;
    u32 low_half = linked & 0xffff;
#pragma clang loop unroll(disable)
    for (int i = 0; i < 17; i++) {
        u32 low = w->low, high = w->high;
        if (low >= high)
            break;
        u32 middle = (low + high) >> 1;
        int block_index = middle >> 4;
        struct unwind_rows *block = unwind_rows.lookup(&block_index);
        if (!block)
            return STOP_INTERNAL;
        u32 in_block = middle;
        BOUND(in_block, 15);
        if ((block->row[in_block] & 0xffff) <= low_half)
            w->low = middle + 1;
        else
            w->high = middle;
    }
    u32 row = w->low - 1;  // a binary begins with a row of its own that has no rule, so row 0 is never needed
    int block_index = row >> 4;
    struct unwind_rows *block = unwind_rows.lookup(&block_index);
    if (!block)
        return STOP_INTERNAL;
    BOUND(row, 15);
    int rule_index = block->row[row] >> 16;
    struct unwind_rule *found = unwind_rules.lookup(&rule_index);
    if (!found)
        return STOP_INTERNAL;
    *rule = *found;
    return STEP_NEXT;
}

// Is there a call instruction just before this address?
static __always_inline int follows_call(u64 address) {
    u64 before = 0;
    if (bpf_probe_read_user(&before, 8, (void *)(address - 8)))
        return 0;
    u8 b7 = before >> 8, b6 = before >> 16, b5 = before >> 24, b4 = before >> 32;
    u8 b3 = before >> 40, b2 = before >> 48, b1 = before >> 56;
    if (b5 == 0xe8)  // call rel32
        return 1;
    if (b2 == 0xff && (b1 & 0x38) == 0x10)  // call *reg, call *(reg)
        return 1;
    if (b3 == 0xff && ((b2 & 0xf8) == 0x50 || b2 == 0x14))  // call *disp8(reg), call *(sib)
        return 1;
    if (b4 == 0xff && b3 == 0x54)  // call *disp8(sib)
        return 1;
    if (b6 == 0xff && (b5 == 0x15 || (b5 & 0xf8) == 0x90))  // call *disp32(rip), call *disp32(reg)
        return 1;
    return b7 == 0xff && b6 == 0x94;  // call *disp32(sib)
}

// Code without a rule that was interrupted where its return address is the topmost word, as in functions that need no
// frame (Go, assembly): a direct call of a place not far before it. Its frame pointer is still its caller's.
#define MAX_LEAF_BYTES 0x10000
static __always_inline int step_out_of_leaf(struct walk *w) {
    u64 word = 0, before = 0;
    if (bpf_probe_read_user(&word, 8, (void *)w->sp) || word < 4096 || word >> MAX_ADDRESS_BITS)
        return 0;
    if (bpf_probe_read_user(&before, 8, (void *)(word - 8)) || (u8)(before >> 24) != 0xe8)
        return 0;
    u64 target = word + (s64)(s32)(before >> 32);
    if (w->pc - target >= MAX_LEAF_BYTES)
        return 0;
    w->pc = word;
    w->sp += 8;
    w->leaf = 0;
    w->record.header.flags |= FLAG_FRAME_POINTER;
    return 1;
}

// A frame without a rule, by its frame pointer. In code of a file the caller must look like one, in generated code
// the chain is taken as it is.
static __always_inline int step_by_frame_pointer(struct walk *w, int must_follow_call) {
    u64 saved[2] = {};
    if ((w->bp & 7) || w->bp < w->sp || w->bp - w->sp >= MAX_FRAME_POINTER_STEP)
        return STOP_NO_RULE;
    if (bpf_probe_read_user(saved, sizeof(saved), (void *)w->bp))
        return STOP_NO_RULE;
    if (saved[1] < 4096 || saved[1] >> MAX_ADDRESS_BITS)
        return STOP_NO_RULE;
    if (must_follow_call && !follows_call(saved[1]))  // by the ABI a frame pointer of 0 is the outermost one's
        return saved[0] || w->current.kind == MAPPING_TABLE ? STOP_NO_RULE : STOP_ROOT;
    if (must_follow_call && w->tables.count && !find_mapping(w, saved[1], &w->looked_up))
        return STOP_NO_RULE;
    w->sp = w->bp + 16;
    w->bp = saved[0];
    w->pc = saved[1];
    w->leaf = 0;
    w->record.header.flags |= FLAG_FRAME_POINTER;
    count(COUNTER_FRAME_POINTER);
    return STEP_NEXT;
}

static __always_inline int step_over_signal_frame(struct walk *w) {
    u64 r[17] = {};  // r8-r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip
    if (bpf_probe_read_user(r, sizeof(r), (void *)(w->sp + RT_SIGFRAME_REGISTERS)))
        return STOP_UNREADABLE;
    w->r10 = r[2];
    w->r13 = r[5];
    w->bp = r[10];
    w->sp = r[15];
    w->pc = r[16];
    w->leaf = 1;
    return STEP_NEXT;
}

static __always_inline int apply_rule(struct walk *w, struct unwind_rule *rule) {
    u64 cfa = 0, value = 0;
    s64 offset = rule->cfa_offset;
    switch (rule->cfa) {
    case CFA_RSP:
        cfa = w->sp + offset;
        break;
    case CFA_RBP:
        cfa = w->bp + offset;
        break;
    case CFA_PLT:
        cfa = w->sp + 8 + ((w->pc & 15) >= (u64)offset ? 8 : 0);
        break;
    case CFA_DEREF_RBP:
        if (bpf_probe_read_user(&value, 8, (void *)(w->bp + (offset >> 8))))
            return STOP_UNREADABLE;
        cfa = value + ((offset & 255) << 3);
        break;
    case CFA_DEREF_RSP:
        if (bpf_probe_read_user(&value, 8, (void *)(w->sp + (offset >> 8))))
            return STOP_UNREADABLE;
        cfa = value + ((offset & 255) << 3);
        break;
    case CFA_STOP:
        return STOP_ROOT;
    case CFA_SIGNAL:
        return step_over_signal_frame(w);
    case CFA_REGISTER:
        if (!w->leaf)
            return STOP_NO_RULE;
        if ((offset & 255) == 10)
            cfa = w->r10;
        else if ((offset & 255) == 13)
            cfa = w->r13;
        else
            return STOP_NO_RULE;
        cfa += offset >> 8;
        break;
    default:
        return STOP_NO_RULE;
    }
    u64 return_address = 0;
    if (bpf_probe_read_user(&return_address, 8, (void *)(cfa - 8)))
        return STOP_UNREADABLE;
    if (rule->rbp == RBP_CFA) {
        value = 0;
        bpf_probe_read_user(&value, 8, (void *)(cfa + (s64)rule->rbp_offset));
        w->bp = value;
    } else if (rule->rbp == RBP_RELATIVE) {
        value = 0;
        bpf_probe_read_user(&value, 8, (void *)(w->bp + (s64)rule->rbp_offset));
        w->bp = value;
    }
    if (return_address < 4096)
        return STOP_NULL_RETURN;
    if ((w->record.header.flags & FLAG_SCANNED) && !follows_call(return_address))
        return STOP_NO_RULE;
    if (cfa <= w->sp)
        return STOP_NO_PROGRESS;
    w->pc = return_address;
    w->sp = cfa;
    w->leaf = 0;
    return STEP_NEXT;
}

union rule_bits {
    struct unwind_rule rule;
    u64 bits;
};

// From the frame in `w` to its caller's. Returns STEP_NEXT or why the walk ends here.
static __always_inline int step(struct walk *w) {
    u64 pc = w->pc - (w->leaf ? 0 : 1);
    u32 serial = w->tables.serial;
    union rule_bits rule = {};
    if (pc >> MAX_ADDRESS_BITS)
        return STOP_NO_MAPPING;
    u64 tag = pc | ((u64)serial << MAX_ADDRESS_BITS);
    int slot = ((u32)(pc >> 1) ^ (u32)(pc >> 14) ^ (serial << 5)) & (RULE_CACHE - 1);
    struct cached_rule *cached = rule_cache.lookup(&slot);
    if (!cached)
        return STOP_INTERNAL;
    rule.bits = *(volatile u64 *)&cached->rule;
    if (!serial || (*(volatile u64 *)&cached->check ^ rule.bits) != tag) {
        if ((pc < w->current.start || pc >= w->current.end) && !find_mapping(w, pc, &w->current)) {
            w->current.end = 0;
            return pc == w->unmapped ? STOP_NO_MAPPING : STEP_ASK_KERNEL;
        }
        if (w->current.kind == MAPPING_FRAME_POINTER)
            return step_by_frame_pointer(w, 0);
        rule.bits = 0;
        if (w->current.kind == MAPPING_TABLE) {
            int failed = find_rule_in_table(w, pc, &rule.rule);
            if (failed != STEP_NEXT)
                return failed;
        }
        if (serial && rule.rule.cfa != CFA_NONE) {  // without a rule the mapping is needed
            *(volatile u64 *)&cached->check = tag ^ rule.bits;
            *(volatile u64 *)&cached->rule = rule.bits;
        }
    }
    if (rule.rule.cfa == CFA_NONE) {
        if (w->leaf && step_out_of_leaf(w))
            return STEP_NEXT;
        return step_by_frame_pointer(w, 1);
    }
    return apply_rule(w, &rule.rule);
}

// Up to FRAMES_PER_PROGRAM frames. Returns STEP_NEXT when there may be more.
static __always_inline int walk_native(struct walk *w) {
    int result = STEP_NEXT;
#pragma clang loop unroll(disable)
    for (int i = 0; i < FRAMES_PER_PROGRAM; i++) {
        if (!w->resume) {
            if (w->record.header.n_user >= MAX_USER_FRAMES)
                return STOP_TOO_DEEP;
            add_user_frame(w);
        }
        w->resume = 0;
        result = step(w);
        if (result != STEP_NEXT)
            break;
    }
    return result;
}
