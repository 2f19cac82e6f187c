// Runs the .eh_frame parser on many sections, each in a block of exactly its size, so that the address sanitizer sees
// every read beyond it. Input: {u32 size, u64 address, bytes}*; output: for each, one line that sums the result up.
#include <inttypes.h>
#include <stdio.h>

#include "ehframe.c"

static uint64_t sum_up(uint64_t hash, const void *data, size_t size) {
    const uint8_t *bytes = data;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

int main(void) {
    static const uint64_t ranges[] = {0x1000, 0x9000, 0x20000, 0x200000};
    uint32_t size;
    uint64_t address;
    while (fread(&size, sizeof size, 1, stdin) == 1 && fread(&address, sizeof address, 1, stdin) == 1) {
        uint8_t *section = malloc(size ? size : 1);
        if (!section || fread(section, 1, size, stdin) != size)
            return 2;
        uint8_t *exact = malloc(size);
        if (size)
            memcpy(exact, section, size);
        free(section);
        struct gpuprof_ehframe out;
        int status = gpuprof_ehframe_build(exact, size, address, ranges, 2, &out);
        uint64_t hash = 0xcbf29ce484222325u;
        if (!status) {
            hash = sum_up(hash, out.rows, out.row_count * sizeof *out.rows);
            hash = sum_up(hash, out.page_starts, (out.page_count + 1) * sizeof *out.page_starts);
            hash = sum_up(hash, out.rules, out.rule_count * sizeof *out.rules);
        }
        printf("%d %" PRIu32 " %" PRIu32 " %016" PRIx64 "\n", status, out.row_count, out.fde_count, hash);
        gpuprof_ehframe_free(&out);
        free(exact);
    }
    return 0;
}
