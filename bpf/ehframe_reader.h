// SPDX-License-Identifier: Apache-2.0
// Bounds-checked reads of the encodings in .eh_frame: fixed-size, LEB128, pointers, blocks. At the end they yield 0.
#pragma once
#include "ehframe_types.h"

static uint64_t read_fixed(struct reader *r, unsigned bytes) {
    uint64_t value = 0;
    if ((uint64_t)(r->end - r->at) < bytes) {
        r->at = r->end;
        return 0;
    }
    memcpy(&value, r->at, bytes);
    r->at += bytes;
    return value;
}

static uint64_t read_uleb(struct reader *r) {
    uint64_t value = 0;
    unsigned shift = 0;
    while (r->at < r->end) {
        uint8_t byte = *r->at++;
        if (shift < 64)
            value |= (uint64_t)(byte & 0x7f) << shift;
        shift += 7;
        if (!(byte & 0x80))
            break;
    }
    return value;
}

static int64_t read_sleb(struct reader *r) {
    uint64_t value = 0;
    unsigned shift = 0;
    uint8_t byte = 0;
    while (r->at < r->end) {
        byte = *r->at++;
        if (shift < 64)
            value |= (uint64_t)(byte & 0x7f) << shift;
        shift += 7;
        if (!(byte & 0x80))
            break;
    }
    if (shift < 64 && (byte & 0x40))
        value |= ~(uint64_t)0 << shift;
    return (int64_t)value;
}

static void skip(struct reader *r, uint64_t bytes) {
    r->at = bytes < (uint64_t)(r->end - r->at) ? r->at + bytes : r->end;
}

// A pointer in one of the DW_EH_PE formats; `*ok` is cleared for those that occur in no address of an FDE.
static uint64_t read_pointer(struct reader *r, uint8_t encoding, uint64_t own_address, bool *ok) {
    uint64_t value;
    switch (encoding & 0x0f) {
    case 0x00: case 0x04: case 0x0c: value = read_fixed(r, 8); break;
    case 0x01: value = read_uleb(r); break;
    case 0x09: value = (uint64_t)read_sleb(r); break;
    case 0x02: value = read_fixed(r, 2); break;
    case 0x0a: value = (uint64_t)(int64_t)(int16_t)read_fixed(r, 2); break;
    case 0x03: value = read_fixed(r, 4); break;
    case 0x0b: value = (uint64_t)(int64_t)(int32_t)read_fixed(r, 4); break;
    default: *ok = false; return 0;
    }
    if ((encoding & 0xf0) == 0x10)
        value += own_address;
    else if (encoding & 0xf0)
        *ok = false;
    return value;
}
