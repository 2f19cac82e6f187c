/* What NVTX ranges are called: texts of several forms, and the handles of those that are registered (nvtx.h). */
#define _GNU_SOURCE
#include "nvtx.h"
#include "nvtx_abi.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define DOMAINS_MAX 256u
#define STRINGS_BYTES (4u << 20) /* of registered strings */

/* What a handle of ours points to. */
struct text {
    char text[1];
};

static pthread_mutex_t handles = PTHREAD_MUTEX_INITIALIZER; /* only ever tried: a forked child may find it locked for good */
static size_t handle_bytes, domains;

void nvtx_narrow(const wchar_t *wide, char *text, size_t size)
{
    size_t used = 0;
    for (; wide && *wide; wide++) {
        uint32_t c = (uint32_t)*wide;
        if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
            c = 0xfffd;
        size_t bytes = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        if (used + bytes >= size)
            break;
        if (bytes == 1) {
            text[used++] = (char)c;
            continue;
        }
        static const uint8_t heads[] = {0, 0, 0xc0, 0xe0, 0xf0};
        text[used] = (char)(heads[bytes] | c >> 6 * (bytes - 1));
        for (size_t i = 1; i < bytes; i++)
            text[used + i] = (char)(0x80 | (c >> 6 * (bytes - 1 - i) & 0x3f));
        used += bytes;
    }
    text[used] = 0;
}

const char *nvtx_text(const void *domain, int type, const void *message, char *room)
{
    size_t used = domain ? strnlen(((const struct text *)domain)->text, PATH_NAME_BYTES / 2) : 0;
    const char *text = "";
    if (used > 0) {
        memcpy(room, ((const struct text *)domain)->text, used);
        memcpy(room + used, ": ", 2);
        used += 2;
    }
    if (message && type == NVTX_MESSAGE_WIDE) {
        nvtx_narrow(message, room + used, PATH_NAME_BYTES - used);
        if (room[used])
            return room;
    } else if (message && type == NVTX_MESSAGE_ASCII)
        text = message;
    else if (message && type == NVTX_MESSAGE_OF_STRING)
        text = ((const struct text *)message)->text;
    if (!*text)
        text = "(no name)";
    if (used == 0)
        return text;
    size_t length = strnlen(text, PATH_NAME_BYTES - 1 - used);
    memcpy(room + used, text, length);
    room[used + length] = 0;
    return room;
}

void *nvtx_keep(const char *text, int domain)
{
    size_t length = text ? strnlen(text, PATH_NAME_BYTES - 1) : 0;
    struct text *kept = NULL;
    if (pthread_mutex_trylock(&handles) != 0)
        return NULL;
    if (handle_bytes + length + 1 <= STRINGS_BYTES && (!domain || domains < DOMAINS_MAX) && (kept = malloc(sizeof *kept + length))) {
        if (length)
            memcpy(kept->text, text, length);
        kept->text[length] = 0;
        handle_bytes += sizeof *kept + length;
        domains += (size_t)domain;
    }
    pthread_mutex_unlock(&handles);
    return kept;
}
