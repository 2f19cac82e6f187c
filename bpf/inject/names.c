/* Interning of kernel names (names.h). All calls come under the writer's mutex. */
#define _GNU_SOURCE
#include "names.h"

#include <stdlib.h>
#include <string.h>

struct entry {
    const char *pointer; /* where CUPTI keeps it: a shortcut, checked by content */
    char *text;
    uint64_t hash;
    uint32_t length;
    uint32_t sent; /* the listener that has its text */
};

static struct entry entries[NAMES_MAX]; /* entry 0 is NAME_NONE */
static uint32_t count = 1;
static uint32_t by_hash[2 * NAMES_MAX];
static uint32_t by_pointer[2 * NAMES_MAX];
static size_t text_bytes;
static uint32_t listener = 1;

static uint64_t hash_text(const char *text, size_t length)
{
    uint64_t hash = 1469598103934665603ull; /* FNV-1a */
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (uint8_t)text[i]) * 1099511628211ull;
    return hash;
}

static uint32_t pointer_slot(const char *pointer)
{
    return (uint32_t)(((uintptr_t)pointer * 0x9e3779b97f4a7c15ull) >> 50) & (2 * NAMES_MAX - 1);
}

static uint32_t find_or_add(const char *name)
{
    uint32_t hint = by_pointer[pointer_slot(name)];
    if (hint && entries[hint].pointer == name && strncmp(entries[hint].text, name, NAME_BYTES_MAX) == 0)
        return hint;

    size_t length = strnlen(name, NAME_BYTES_MAX - 1);
    uint64_t hash = hash_text(name, length);
    uint32_t place = (uint32_t)hash & (2 * NAMES_MAX - 1);
    uint32_t id;
    while ((id = by_hash[place]) != 0) {
        if (entries[id].hash == hash && entries[id].length == length && memcmp(entries[id].text, name, length) == 0)
            break;
        place = (place + 1) & (2 * NAMES_MAX - 1);
    }
    if (id == 0) {
        if (count == NAMES_MAX || text_bytes + length + 1 > NAMES_TEXT_BYTES)
            return NAME_TAIL;
        char *text = malloc(length + 1);
        if (!text)
            return NAME_TAIL;
        memcpy(text, name, length);
        text[length] = 0;
        text_bytes += length + 1;
        id = count++;
        entries[id] = (struct entry){.text = text, .hash = hash, .length = (uint32_t)length};
        by_hash[place] = id;
    }
    entries[id].pointer = name;
    by_pointer[pointer_slot(name)] = id;
    return id;
}

int names_id(struct ring *ring, const char *name, uint32_t epoch, uint32_t *id)
{
    *id = name ? find_or_add(name) : NAME_NONE;
    if (*id == NAME_NONE || *id == NAME_TAIL || entries[*id].sent == listener)
        return 0;
    if (ring_send_text(ring, SLOT_NAME, epoch, *id, 0, entries[*id].text, entries[*id].length) < 0)
        return -1; /* sent again with its next record */
    entries[*id].sent = listener;
    ring->header->names = count;
    return 0;
}

void names_forget_sent(void) { listener++; }
