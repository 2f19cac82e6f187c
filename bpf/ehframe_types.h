// SPDX-License-Identifier: Apache-2.0
// What the parts of the .eh_frame parser (ehframe.c) share: limits, kinds of rules, the state of one build.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum cfa_kind {
    CFA_NONE, CFA_RSP, CFA_RBP, CFA_PLT, CFA_DEREF_RBP, CFA_DEREF_RSP, CFA_STOP, CFA_SIGNAL, CFA_REGISTER
};
enum rbp_kind { RBP_SAME, RBP_CFA, RBP_UNDEFINED, RBP_RELATIVE };
enum caller_kind { CALLER_NORMAL, CALLER_NONE, CALLER_OTHER };  // return address: at CFA-8, undefined, anywhere else

enum {
    OK = 0, NO_MEMORY = 1, TOO_LARGE = 2, TOO_COMPLEX = 3, EMPTY = 4,
    REGISTER_RBP = 6, REGISTER_RSP = 7, MAX_REMEMBERED = 16, MAX_RULES = 8192, MAX_PAGES = 16384
};
#define MAX_SECTION (64u << 20)
#define MAX_ROWS (16u << 20)
#define MAX_FACTOR 0xffff
#define MAX_UNSCALED 0x7fffffffu
#define WORK_PER_BYTE 16u
#define WORK_FREE 65536u
#define ALIGNMENT_GAP 16u  // padding between functions keeps the rule before it

struct gpuprof_ehframe {
    uint32_t *rows;
    uint32_t *page_starts;  // page_count + 1
    uint64_t *rules;
    uint64_t first_page;
    uint32_t row_count;
    uint32_t page_count;
    uint32_t rule_count;
    uint32_t fde_count;
    uint32_t unsupported;  // instructions, expressions and CIEs that were not understood
    uint32_t status;
};

struct reader {
    const uint8_t *at;
    const uint8_t *end;
};

struct frame_state {
    int64_t cfa_offset;
    int64_t rbp_offset;
    uint8_t cfa;
    uint8_t cfa_register;
    uint8_t rbp;
    uint8_t caller;
};

struct cie {
    uint64_t offset;
    uint64_t code_factor;
    int64_t data_factor;
    struct frame_state initial;
    uint32_t return_register;
    uint8_t pointer_encoding;
    bool has_augmentation_data;
    bool signal_frame;
    bool valid;
};

struct fde {
    uint64_t begin;
    uint64_t end;
    uint32_t offset;  // in the section
    uint32_t cie;
};

struct builder {
    const uint8_t *section;
    uint64_t size;
    uint64_t address;
    const uint64_t *ranges;  // pairs [begin, end) of executable addresses
    uint64_t range_count;
    uint64_t work_left;
    struct cie *cies;
    uint32_t cie_count, cie_room;
    uint32_t *cie_slots;  // hash by offset: index + 1
    uint32_t cie_slot_count;
    struct fde *fdes;
    uint32_t fde_count, fde_room;
    uint64_t *row_pc;  // address and rule of each row until they are packed
    uint16_t *row_rule;
    uint32_t row_count, row_room;
    uint64_t rules[MAX_RULES];
    uint32_t rule_slots[MAX_RULES * 4];
    uint32_t rule_count;
    uint32_t unsupported;
    int status;
};
