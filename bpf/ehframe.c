// SPDX-License-Identifier: Apache-2.0
// .eh_frame -> unwind rows for the BPF programs (x86-64). ehframe_python.py is the same in Python and gives identical
// rows.
//
// The format (System V ABI, LSB "Exception Frames", DWARF 5 section 6.4): a sequence of entries {u32 length, u32 id,
// ...}; id 0 is a CIE (defaults: alignment factors, return address register, augmentation, initial instructions), any
// other id is an FDE and the distance back to its CIE: address range, instructions. Instructions build a table of
// rules by address: how to find the canonical frame address (CFA) and saved registers. We keep the CFA, rbp and
// whether there is a caller.
//
// A rule is packed in 8 bytes: u8 cfa kind, u8 rbp kind, s16 rbp offset, s32 cfa offset (layout.bpf.h, struct
// unwind_rule). A row is u32: index of its rule << 16 | low half of the linked address it begins at. Rows are sorted;
// a row holds up to the next one. Row 0 stands before all others and has rule 0 (none). `page_starts[p]` is the first
// row in the p-th 64 KiB.
//
// Input is hostile: every read is checked, FDEs outside of executable ranges are dropped, rows, rules, pages and the
// total number of instructions are bounded.
#include "ehframe_instructions.h"

#define EXPORT __attribute__((visibility("default")))

// ------------------------------------------------------------------------------------------------------------- entries

// Reads the length field; false at the end of what is well-formed. An empty body (terminator) is passed over by the
// caller.
static bool read_entry(const struct builder *b, uint64_t offset, struct reader *body) {
    struct reader r = {b->section + offset, b->section + b->size};
    if (b->size - offset < 4)
        return false;
    uint64_t length = read_fixed(&r, 4);
    if (length == 0xffffffffu) {
        if (r.end - r.at < 8)
            return false;
        length = read_fixed(&r, 8);
    }
    if (length > (uint64_t)(r.end - r.at) || (length && length < 4))
        return false;
    body->at = r.at;
    body->end = r.at + length;
    return true;
}

static void parse_augmentation(const char *letters, struct reader *r, struct cie *c) {
    for (; *letters; letters++) {
        bool ok = true;
        switch (*letters) {
        case 'R': c->pointer_encoding = (uint8_t)read_fixed(r, 1); break;
        case 'L': read_fixed(r, 1); break;
        case 'P': {
            uint8_t encoding = (uint8_t)read_fixed(r, 1);
            read_pointer(r, encoding & 0x0f, 0, &ok);
            break;
        }
        case 'S': c->signal_frame = true; break;
        default: return;
        }
    }
}

static bool parse_cie(struct builder *b, struct cie *c) {
    struct reader r;
    if (!read_entry(b, c->offset, &r) || r.end - r.at < 8 || read_fixed(&r, 4) != 0)
        return false;
    uint64_t version = read_fixed(&r, 1);
    if (version != 1 && version != 3 && version != 4)
        return false;
    const uint8_t *terminator = memchr(r.at, 0, (size_t)(r.end - r.at));
    if (!terminator)
        return false;
    const char *augmentation = (const char *)r.at;
    r.at = terminator + 1;
    if (version == 4)
        skip(&r, 2);  // address size, segment selector size
    c->code_factor = read_uleb(&r);
    c->data_factor = read_sleb(&r);
    c->return_register = version == 1 ? (uint32_t)read_fixed(&r, 1) : (uint32_t)read_uleb(&r);
    if (c->code_factor == 0 || c->code_factor > MAX_FACTOR || c->data_factor < -MAX_FACTOR ||
        c->data_factor > MAX_FACTOR)
        return false;
    if (augmentation[0] == 'z') {
        c->has_augmentation_data = true;
        struct reader data = read_block(&r);
        parse_augmentation(augmentation + 1, &data, c);
    } else if (augmentation[0]) {
        return false;
    }
    if (c->pointer_encoding & 0xe0)  // relative to anything but itself, or indirect
        return false;
    run(b, c, r, &c->initial, 0, 0, false);
    return true;
}

static bool grow_cie_slots(struct builder *b) {
    uint32_t slots = b->cie_slot_count ? b->cie_slot_count * 2 : 256;
    uint32_t *fresh = calloc(slots, sizeof *fresh);
    if (!fresh)
        return false;
    for (uint32_t i = 0; i < b->cie_count; i++) {
        uint32_t slot = (uint32_t)(b->cies[i].offset * 0x9E3779B1u) & (slots - 1);
        while (fresh[slot])
            slot = (slot + 1) & (slots - 1);
        fresh[slot] = i + 1;
    }
    free(b->cie_slots);
    b->cie_slots = fresh;
    b->cie_slot_count = slots;
    return true;
}

// Index of the CIE at an offset, parsed when it is new.
static uint32_t find_cie(struct builder *b, uint64_t offset) {
    if (b->cie_count * 2 >= b->cie_slot_count && !grow_cie_slots(b)) {
        b->status = NO_MEMORY;
        return 0;
    }
    uint32_t slot = (uint32_t)(offset * 0x9E3779B1u) & (b->cie_slot_count - 1);
    for (; b->cie_slots[slot]; slot = (slot + 1) & (b->cie_slot_count - 1))
        if (b->cies[b->cie_slots[slot] - 1].offset == offset)
            return b->cie_slots[slot] - 1;
    if (b->cie_count == b->cie_room) {
        b->cies = grow(b, b->cies, &b->cie_room, sizeof *b->cies);
        if (b->status)
            return 0;
    }
    struct cie *c = &b->cies[b->cie_count];
    memset(c, 0, sizeof *c);
    c->offset = offset;
    c->valid = parse_cie(b, c);
    if (!c->valid)
        b->unsupported++;
    b->cie_slots[slot] = ++b->cie_count;
    return b->cie_count - 1;
}

// End of the executable range that holds the address; 0: none does.
static uint64_t range_end(const struct builder *b, uint64_t pc) {
    for (uint64_t i = 0; i < b->range_count; i++)
        if (pc >= b->ranges[2 * i] && pc < b->ranges[2 * i + 1])
            return b->ranges[2 * i + 1];
    return 0;
}

static void add_fde(struct builder *b, uint64_t offset, struct reader body) {
    const uint8_t *id_at = body.at;
    uint64_t id = read_fixed(&body, 4), id_offset = (uint64_t)(id_at - b->section);
    if (id > id_offset)
        return;
    uint32_t index = find_cie(b, id_offset - id);
    if (b->status || !b->cies[index].valid)
        return;
    uint8_t encoding = b->cies[index].pointer_encoding;
    bool ok = true;
    uint64_t begin = read_pointer(&body, encoding, b->address + (uint64_t)(body.at - b->section), &ok);
    uint64_t length = read_pointer(&body, encoding & 0x0f, 0, &ok);
    uint64_t limit = range_end(b, begin);
    if (!ok || !length || !limit)
        return;
    if (b->fde_count == b->fde_room) {
        b->fdes = grow(b, b->fdes, &b->fde_room, sizeof *b->fdes);
        if (b->status)
            return;
    }
    uint64_t end = length > limit - begin ? limit : begin + length;
    b->fdes[b->fde_count++] = (struct fde){begin, end, (uint32_t)offset, index};
}

static void collect_fdes(struct builder *b) {
    uint64_t offset = 0;
    struct reader body;
    while (!b->status && offset < b->size && read_entry(b, offset, &body)) {
        struct reader id = body;
        if (body.at < body.end && read_fixed(&id, 4) != 0)
            add_fde(b, offset, body);
        offset = (uint64_t)(body.end - b->section);
    }
}

static int by_begin(const void *left, const void *right) {
    const struct fde *a = left, *c = right;
    if (a->begin != c->begin)
        return a->begin < c->begin ? -1 : 1;
    return a->offset < c->offset ? -1 : a->offset > c->offset;
}

static void run_fde(struct builder *b, const struct fde *f, uint64_t end) {
    const struct cie *c = &b->cies[f->cie];
    struct reader body;
    bool ok = true;
    if (!read_entry(b, f->offset, &body))
        return;
    read_fixed(&body, 4);
    read_pointer(&body, c->pointer_encoding & 0x0f, 0, &ok);
    read_pointer(&body, c->pointer_encoding & 0x0f, 0, &ok);
    if (c->has_augmentation_data)
        read_block(&body);
    struct frame_state state = c->initial;
    uint64_t pc = run(b, c, body, &state, f->begin, end, true);
    if (pc < end)
        add_row(b, pc, pack_rule(&state, c->signal_frame));
}

static void run_fdes(struct builder *b) {
    if (b->fde_count)
        qsort(b->fdes, b->fde_count, sizeof *b->fdes, by_begin);
    for (uint32_t i = 0; i < b->fde_count && !b->status; i++) {
        const struct fde *f = &b->fdes[i];
        uint64_t next = i + 1 < b->fde_count ? b->fdes[i + 1].begin : UINT64_MAX;
        run_fde(b, f, f->end < next ? f->end : next);
        if (next >= f->end && next - f->end >= ALIGNMENT_GAP)
            add_row(b, f->end, CFA_NONE);
    }
}

// -------------------------------------------------------------------------------------------------------------- result

static int pack_rows(const struct builder *b, struct gpuprof_ehframe *out) {
    uint64_t first_page = b->row_pc[0] >> 16, last_page = b->row_pc[b->row_count - 1] >> 16;
    if (last_page - first_page >= MAX_PAGES)
        return TOO_LARGE;
    uint32_t pages = (uint32_t)(last_page - first_page) + 1;
    out->rows = malloc(((size_t)b->row_count + 1) * sizeof *out->rows);
    out->page_starts = malloc(((size_t)pages + 1) * sizeof *out->page_starts);
    out->rules = malloc(b->rule_count * sizeof *out->rules);
    if (!out->rows || !out->page_starts || !out->rules)
        return NO_MEMORY;
    uint32_t page = 0;
    out->rows[0] = 0;
    for (uint32_t i = 0; i < b->row_count; i++) {
        while (page <= (b->row_pc[i] >> 16) - first_page)
            out->page_starts[page++] = i + 1;
        out->rows[i + 1] = (uint32_t)b->row_rule[i] << 16 | (uint32_t)(b->row_pc[i] & 0xffff);
    }
    while (page <= pages)
        out->page_starts[page++] = b->row_count + 1;
    memcpy(out->rules, b->rules, b->rule_count * sizeof *out->rules);
    out->first_page = first_page;
    out->row_count = b->row_count + 1;
    out->page_count = pages;
    out->rule_count = b->rule_count;
    return OK;
}

// Frees what gpuprof_ehframe_build gave.
EXPORT void gpuprof_ehframe_free(struct gpuprof_ehframe *out) {
    free(out->rows);
    free(out->page_starts);
    free(out->rules);
    memset(out, 0, sizeof *out);
}

// Builds the rows of a section that is linked at `address`. Returns 0, or the reason why there are none; then there
// is nothing to free.
EXPORT int gpuprof_ehframe_build(const uint8_t *section, uint64_t size, uint64_t address, const uint64_t *ranges,
                                 uint64_t range_count, struct gpuprof_ehframe *out) {
    memset(out, 0, sizeof *out);
    if (size > MAX_SECTION)
        return TOO_LARGE;
    struct builder *b = calloc(1, sizeof *b);
    if (!b)
        return NO_MEMORY;
    b->section = section;
    b->size = size;
    b->address = address;
    b->ranges = ranges;
    b->range_count = range_count;
    b->work_left = size * WORK_PER_BYTE + WORK_FREE;
    rule_index(b, CFA_NONE);
    collect_fdes(b);
    if (!b->status)
        run_fdes(b);
    int status = b->status ? b->status : b->row_count ? pack_rows(b, out) : EMPTY;
    out->fde_count = b->fde_count;
    out->unsupported = b->unsupported;
    free(b->cies);
    free(b->cie_slots);
    free(b->fdes);
    free(b->row_pc);
    free(b->row_rule);
    free(b);
    if (status)
        gpuprof_ehframe_free(out);
    out->status = (uint32_t)status;
    return status;
}
