// SPDX-License-Identifier: Apache-2.0
// The call frame instructions of DWARF (5, section 6.4.2): what each does to the rules of a frame.
#pragma once
#include "ehframe_reader.h"
#include "ehframe_rows.h"

static void set_cfa_register(struct frame_state *s, uint64_t reg) {
    s->cfa_register = reg < 256 ? (uint8_t)reg : 255;
    s->cfa = reg == REGISTER_RSP ? CFA_RSP : reg == REGISTER_RBP ? CFA_RBP : CFA_REGISTER;
}

static void set_cfa_offset(struct frame_state *s, int64_t offset) {
    s->cfa_offset = offset;
    if (offset < -(int64_t)MAX_UNSCALED || offset > (int64_t)MAX_UNSCALED)
        s->cfa = CFA_NONE;
}

// CFA expressions that compilers and linkers emit: the PLT's, a register plus offset, and one level of memory.
static void set_cfa_expression(struct builder *b, struct frame_state *s, struct reader e) {
    // rsp + 8 + ((rip & 15) >= N) * 8, N being 11 (lazy PLT) or 10
    static const uint8_t plt[] = {0x77, 0x08, 0x80, 0x00, 0x3f, 0x1a, 0, 0x2a, 0x33, 0x24, 0x22};
    uint64_t length = (uint64_t)(e.end - e.at);
    s->cfa = CFA_NONE;
    s->cfa_offset = 0;
    if (length == sizeof plt && !memcmp(e.at, plt, 6) && !memcmp(e.at + 7, plt + 7, 4) &&
        (e.at[6] == 0x3a || e.at[6] == 0x3b)) {
        s->cfa = CFA_PLT;
        s->cfa_offset = e.at[6] - 0x30;
        return;
    }
    if (length >= 2 && e.at[0] >= 0x70 && e.at[0] <= 0x8f) {  // DW_OP_breg0 + register
        unsigned reg = e.at[0] - 0x70u;
        e.at++;
        int64_t offset = read_sleb(&e);
        bool in_range = offset >= -(1 << 22) && offset < (1 << 22) && (reg == REGISTER_RBP || reg == REGISTER_RSP);
        if (e.at == e.end && in_range) {
            s->cfa = reg == REGISTER_RSP ? CFA_RSP : CFA_RBP;
            s->cfa_offset = offset;
            return;
        }
        if (e.at < e.end && *e.at == 0x06 && in_range) {  // DW_OP_deref
            uint64_t add = 0;
            e.at++;
            if (e.at < e.end && *e.at == 0x23) {  // DW_OP_plus_uconst
                e.at++;
                add = read_uleb(&e);
            }
            if (e.at == e.end && add < 256 * 8 && add % 8 == 0) {
                s->cfa = reg == REGISTER_RSP ? CFA_DEREF_RSP : CFA_DEREF_RBP;
                s->cfa_offset = offset * 256 + (int64_t)(add / 8);
                return;
            }
        }
    }
    b->unsupported++;
}

static void set_rbp(struct frame_state *s, enum rbp_kind kind, int64_t offset) {
    s->rbp = (uint8_t)kind;
    s->rbp_offset = offset;
}

// A saved register at CFA + unscaled * factor.
static void save_register(const struct cie *c, struct frame_state *s, uint64_t reg, int64_t unscaled) {
    bool sane = unscaled >= -(int64_t)MAX_UNSCALED && unscaled <= (int64_t)MAX_UNSCALED;
    int64_t offset = sane ? unscaled * c->data_factor : 0;
    if (reg == REGISTER_RBP)
        set_rbp(s, sane ? RBP_CFA : RBP_UNDEFINED, offset);
    if (reg == c->return_register)
        s->caller = sane && offset == -8 ? CALLER_NORMAL : CALLER_OTHER;
}

static void lose_register(const struct cie *c, struct frame_state *s, uint64_t reg, enum caller_kind caller) {
    if (reg == REGISTER_RBP)
        set_rbp(s, RBP_UNDEFINED, 0);
    if (reg == c->return_register)
        s->caller = (uint8_t)caller;
}

static void restore_register(const struct cie *c, struct frame_state *s, uint64_t reg) {
    if (reg == REGISTER_RBP)
        set_rbp(s, c->initial.rbp, c->initial.rbp_offset);
    if (reg == c->return_register)
        s->caller = c->initial.caller;
}

static void save_rbp_by_expression(const struct cie *c, struct frame_state *s, uint64_t reg, struct reader e) {
    lose_register(c, s, reg, CALLER_OTHER);
    if (reg == REGISTER_RBP && e.end - e.at >= 2 && *e.at == 0x76) {  // DW_OP_breg6
        e.at++;
        int64_t offset = read_sleb(&e);
        if (e.at == e.end)
            set_rbp(s, RBP_RELATIVE, offset);
    }
}

static struct reader read_block(struct reader *r) {
    uint64_t length = read_uleb(r);
    struct reader block = {r->at, r->at};
    skip(r, length);
    block.end = r->at;
    return block;
}

// Runs instructions. With `emit`, rows go out for addresses from `pc` up to `end`; returns the address reached.
static uint64_t run(struct builder *b, const struct cie *c, struct reader r, struct frame_state *s, uint64_t pc,
                    uint64_t end, bool emit) {
    struct frame_state remembered[MAX_REMEMBERED];
    unsigned depth = 0;
    while (r.at < r.end) {
        if (b->work_left == 0) {
            b->status = TOO_COMPLEX;
            return pc;
        }
        b->work_left--;
        uint8_t op = *r.at++;
        uint64_t low = op & 0x3f, advance = 0, reg;
        bool moves = false;
        switch (op >> 6) {
        case 1: advance = low * c->code_factor; moves = true; break;
        case 2: {
            uint64_t unscaled = read_uleb(&r);
            save_register(c, s, low, unscaled > MAX_UNSCALED ? INT64_MAX : (int64_t)unscaled);
            break;
        }
        case 3: restore_register(c, s, low); break;
        default:
            switch (op) {
            case 0x00: break;  // nop
            case 0x01: {  // set_loc
                bool ok = true;
                uint64_t own = b->address + (uint64_t)(r.at - b->section);
                uint64_t to = read_pointer(&r, c->pointer_encoding, own, &ok);
                if (!ok || to < pc) {
                    b->unsupported++;
                    return pc;
                }
                advance = to - pc;
                moves = true;
                break;
            }
            case 0x02: advance = read_fixed(&r, 1) * c->code_factor; moves = true; break;
            case 0x03: advance = read_fixed(&r, 2) * c->code_factor; moves = true; break;
            case 0x04: advance = read_fixed(&r, 4) * c->code_factor; moves = true; break;
            case 0x05: {  // offset_extended
                reg = read_uleb(&r);
                uint64_t unscaled = read_uleb(&r);
                save_register(c, s, reg, unscaled > MAX_UNSCALED ? INT64_MAX : (int64_t)unscaled);
                break;
            }
            case 0x06: restore_register(c, s, read_uleb(&r)); break;
            case 0x07: lose_register(c, s, read_uleb(&r), CALLER_NONE); break;  // undefined
            case 0x08:  // same_value
                reg = read_uleb(&r);
                lose_register(c, s, reg, CALLER_OTHER);
                if (reg == REGISTER_RBP)
                    set_rbp(s, RBP_SAME, 0);
                break;
            case 0x09:  // register
                reg = read_uleb(&r);
                read_uleb(&r);
                lose_register(c, s, reg, CALLER_OTHER);
                break;
            case 0x0a:
                if (depth < MAX_REMEMBERED)
                    remembered[depth++] = *s;
                break;
            case 0x0b:
                if (depth > 0)
                    *s = remembered[--depth];
                break;
            case 0x0c: {  // def_cfa
                reg = read_uleb(&r);
                uint64_t offset = read_uleb(&r);
                set_cfa_register(s, reg);
                set_cfa_offset(s, offset > MAX_UNSCALED ? INT64_MAX : (int64_t)offset);
                break;
            }
            case 0x0d: set_cfa_register(s, read_uleb(&r)); break;
            case 0x0e: {
                uint64_t offset = read_uleb(&r);
                set_cfa_offset(s, offset > MAX_UNSCALED ? INT64_MAX : (int64_t)offset);
                break;
            }
            case 0x0f: set_cfa_expression(b, s, read_block(&r)); break;
            case 0x10:  // expression
                reg = read_uleb(&r);
                save_rbp_by_expression(c, s, reg, read_block(&r));
                break;
            case 0x11:  // offset_extended_sf
                reg = read_uleb(&r);
                save_register(c, s, reg, read_sleb(&r));
                break;
            case 0x12: {  // def_cfa_sf
                reg = read_uleb(&r);
                int64_t offset = read_sleb(&r);
                set_cfa_register(s, reg);
                bool sane = offset >= -(int64_t)MAX_UNSCALED && offset <= (int64_t)MAX_UNSCALED;
                set_cfa_offset(s, sane ? offset * c->data_factor : INT64_MAX);
                break;
            }
            case 0x13: {  // def_cfa_offset_sf
                int64_t offset = read_sleb(&r);
                bool sane = offset >= -(int64_t)MAX_UNSCALED && offset <= (int64_t)MAX_UNSCALED;
                set_cfa_offset(s, sane ? offset * c->data_factor : INT64_MAX);
                break;
            }
            case 0x14: case 0x15:  // val_offset
                reg = read_uleb(&r);
                read_uleb(&r);
                lose_register(c, s, reg, CALLER_OTHER);
                break;
            case 0x16:  // val_expression
                reg = read_uleb(&r);
                read_block(&r);
                lose_register(c, s, reg, CALLER_OTHER);
                break;
            case 0x2e: read_uleb(&r); break;  // GNU_args_size
            default: b->unsupported++; return pc;
            }
        }
        if (moves) {
            if (emit && pc < end)
                add_row(b, pc, pack_rule(s, c->signal_frame));
            pc = advance > UINT64_MAX - pc ? UINT64_MAX : pc + advance;
        }
    }
    return pc;
}
