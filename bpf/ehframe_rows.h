// SPDX-License-Identifier: Apache-2.0
// Rules packed and numbered, rows appended in order.
#pragma once
#include "ehframe_types.h"

static uint64_t pack_rule(const struct frame_state *s, bool signal_frame) {
    uint8_t cfa = s->cfa, rbp = s->rbp;
    int64_t cfa_offset = s->cfa_offset, rbp_offset = 0;
    if (signal_frame)
        return CFA_SIGNAL;
    if (s->caller == CALLER_NONE)
        return CFA_STOP;
    if (s->caller == CALLER_OTHER || cfa == CFA_NONE)
        return CFA_NONE;
    if (cfa == CFA_REGISTER) {
        if (cfa_offset < -(1 << 22) || cfa_offset >= (1 << 22))
            return CFA_NONE;
        cfa_offset = cfa_offset * 256 + s->cfa_register;
    }
    if (cfa_offset < INT32_MIN || cfa_offset > INT32_MAX)
        return CFA_NONE;
    if (rbp == RBP_CFA || rbp == RBP_RELATIVE) {
        if (s->rbp_offset < INT16_MIN || s->rbp_offset > INT16_MAX)
            rbp = RBP_UNDEFINED;
        else
            rbp_offset = s->rbp_offset;
    }
    return cfa | (uint64_t)rbp << 8 | (uint64_t)(uint16_t)rbp_offset << 16 | (uint64_t)(uint32_t)cfa_offset << 32;
}

static uint16_t rule_index(struct builder *b, uint64_t rule) {
    uint32_t slot = (uint32_t)((rule * 0x9E3779B97F4A7C15u) >> 32) % (MAX_RULES * 4);
    while (b->rule_slots[slot]) {
        if (b->rules[b->rule_slots[slot] - 1] == rule)
            return (uint16_t)(b->rule_slots[slot] - 1);
        slot = (slot + 1) % (MAX_RULES * 4);
    }
    if (b->rule_count >= MAX_RULES)
        return 0;  // no honest binary comes near: the rest has no rule
    b->rules[b->rule_count] = rule;
    b->rule_slots[slot] = ++b->rule_count;
    return (uint16_t)(b->rule_count - 1);
}

static void *grow(struct builder *b, void *array, uint32_t *room, size_t element) {
    uint32_t wanted = *room ? *room + *room / 2 : 4096;
    void *larger = realloc(array, wanted * element);
    if (!larger) {
        b->status = NO_MEMORY;
        return array;
    }
    *room = wanted;
    return larger;
}

static void add_row(struct builder *b, uint64_t pc, uint64_t rule) {
    uint16_t index = rule_index(b, rule);
    uint32_t n = b->row_count;
    if (b->status || (n && pc < b->row_pc[n - 1]))
        return;
    if (n && pc == b->row_pc[n - 1]) {
        b->row_rule[n - 1] = index;
        if (n > 1 && b->row_rule[n - 2] == index)
            b->row_count--;
        return;
    }
    if (n && b->row_rule[n - 1] == index)
        return;
    if (n >= MAX_ROWS) {
        b->status = TOO_LARGE;
        return;
    }
    if (n == b->row_room) {
        uint32_t room = b->row_room;
        b->row_rule = grow(b, b->row_rule, &room, sizeof *b->row_rule);
        if (b->status)
            return;
        b->row_pc = grow(b, b->row_pc, &b->row_room, sizeof *b->row_pc);
        if (b->status)
            return;
    }
    b->row_pc[n] = pc;
    b->row_rule[n] = index;
    b->row_count = n + 1;
}
