/* What a process has mapped, and the functions of the libraries among it, read from its memory (attach.h): files may be out of reach, in
 * another mount namespace, or replaced since.
 */
#define _GNU_SOURCE
#include "attach.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_LINES 100000
#define MAX_SYMBOLS (1u << 18)
#define MAX_STRINGS (16u << 20)
#define MAX_HEADERS 64
#define MAX_DYNAMIC 256

int read_memory(int mem, uint64_t address, void *to, size_t size)
{
    return pread(mem, to, size, (off_t)address) == (ssize_t)size ? 0 : -1;
}

int write_memory(int mem, uint64_t address, const void *from, size_t size)
{
    return pwrite(mem, from, size, (off_t)address) == (ssize_t)size ? 0 : -1;
}

/* ---- maps ---------------------------------------------------------------------------------------------------------------------- */

struct line {
    uint64_t start, end, offset;
    char executable;
    const char *path; /* in the line's buffer, or "" */
};

static int parse_line(char *text, struct line *line)
{
    char permissions[8] = "";
    int at = 0;
    if (sscanf(text, "%lx-%lx %7s %lx %*s %*s %n", &line->start, &line->end, permissions, &line->offset, &at) < 4 || line->start >= line->end)
        return -1;
    line->executable = permissions[2] == 'x';
    line->path = at ? text + at : "";
    text[strcspn(text, "\n")] = 0;
    return 0;
}

static FILE *open_maps(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    return fopen(path, "re");
}

static void name_of(const char *path, char name[MODULE_NAME])
{
    const char *slash = strrchr(path, '/');
    snprintf(name, MODULE_NAME, "%s", slash ? slash + 1 : path);
    char *deleted = strstr(name, " (deleted)");
    if (deleted)
        *deleted = 0;
}

int image_read(struct image *image, pid_t pid)
{
    FILE *maps = open_maps(pid);
    if (!maps)
        return -errno;
    image->modules = calloc(MAX_MODULES, sizeof *image->modules);
    image->count = 0;
    char *text = NULL, before[4200] = "";
    size_t size = 0;
    for (int lines = 0; image->modules && lines < MAX_LINES && getline(&text, &size, maps) > 0; lines++) {
        struct line line;
        if (parse_line(text, &line) < 0 || line.path[0] != '/')
            continue;
        if (strncmp(line.path, before, sizeof before - 1) != 0 || line.offset == 0) { /* the same file may be mapped more than once */
            if (image->count == MAX_MODULES)
                continue;
            snprintf(before, sizeof before, "%s", line.path);
            struct module *new = &image->modules[image->count++];
            name_of(line.path, new->name);
            new->base = line.offset == 0 ? line.start : 0;
        }
        struct module *module = &image->modules[image->count - 1];
        if (line.executable && module->texts < MAX_TEXTS)
            module->text[module->texts++] = (struct range){line.start, line.end};
    }
    free(text);
    fclose(maps);
    return image->modules ? 0 : -ENOMEM;
}

int image_mappings(struct mappings *mappings, pid_t pid)
{
    FILE *maps = open_maps(pid);
    if (!maps)
        return -errno;
    if (!mappings->ranges)
        mappings->ranges = malloc(MAX_LINES * sizeof *mappings->ranges);
    mappings->count = 0;
    char *text = NULL;
    size_t size = 0;
    while (mappings->ranges && mappings->count < MAX_LINES && getline(&text, &size, maps) > 0) {
        struct line line;
        if (parse_line(text, &line) == 0)
            mappings->ranges[mappings->count++] = (struct range){line.start, line.end};
    }
    free(text);
    fclose(maps);
    return mappings->ranges ? 0 : -ENOMEM;
}

struct range image_mapping(const struct mappings *mappings, uint64_t address)
{
    for (int low = 0, high = mappings->count; low < high;) {
        int middle = low + (high - low) / 2;
        const struct range *range = &mappings->ranges[middle];
        if (address < range->start)
            high = middle;
        else if (address >= range->end)
            low = middle + 1;
        else
            return *range;
    }
    return (struct range){0, 0};
}

const struct module *image_find(const struct image *image, const char *beginning)
{
    for (int i = 0; i < image->count; i++)
        if (strncmp(image->modules[i].name, beginning, strlen(beginning)) == 0)
            return &image->modules[i];
    return NULL;
}

/* ---- symbols ------------------------------------------------------------------------------------------------------------------- */

struct tables {
    uint64_t bias, symbols, strings, strings_size, gnu_hash;
};

static int find_tables(int mem, const struct module *module, struct tables *tables)
{
    Elf64_Ehdr header;
    Elf64_Phdr segments[MAX_HEADERS];
    if (!module->base || read_memory(mem, module->base, &header, sizeof header) < 0 || memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
        return -1;
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_phentsize != sizeof *segments || header.e_phnum > MAX_HEADERS)
        return -1;
    if (read_memory(mem, module->base + header.e_phoff, segments, header.e_phnum * sizeof *segments) < 0)
        return -1;
    const Elf64_Phdr *dynamic = NULL;
    uint64_t first = UINT64_MAX;
    for (int i = 0; i < header.e_phnum; i++) {
        if (segments[i].p_type == PT_LOAD && segments[i].p_vaddr < first)
            first = segments[i].p_vaddr;
        if (segments[i].p_type == PT_DYNAMIC)
            dynamic = &segments[i];
    }
    if (!dynamic || first == UINT64_MAX)
        return -1;
    *tables = (struct tables){.bias = module->base - (first & ~(uint64_t)(PAGE - 1))};
    for (uint64_t i = 0; i < MAX_DYNAMIC; i++) {
        Elf64_Dyn entry;
        if (read_memory(mem, tables->bias + dynamic->p_vaddr + i * sizeof entry, &entry, sizeof entry) < 0)
            return -1;
        uint64_t value = entry.d_un.d_ptr;
        uint64_t address = value < module->base ? value + tables->bias : value; /* glibc relocates most of them in place */
        if (entry.d_tag == DT_NULL)
            break;
        if (entry.d_tag == DT_SYMTAB)
            tables->symbols = address;
        if (entry.d_tag == DT_STRTAB)
            tables->strings = address;
        if (entry.d_tag == DT_GNU_HASH)
            tables->gnu_hash = address;
        if (entry.d_tag == DT_STRSZ)
            tables->strings_size = value < MAX_STRINGS ? value : MAX_STRINGS;
    }
    return tables->symbols && tables->strings && tables->strings_size && tables->gnu_hash ? 0 : -1;
}

struct hash {
    uint32_t buckets, first, bloom_words, shift;
};

static uint64_t buckets_of(const struct tables *tables, const struct hash *hash)
{
    return tables->gnu_hash + sizeof *hash + (uint64_t)hash->bloom_words * 8;
}

static int read_hash(int mem, const struct tables *tables, struct hash *hash)
{
    if (read_memory(mem, tables->gnu_hash, hash, sizeof *hash) < 0)
        return -1;
    return hash->buckets && hash->buckets <= MAX_SYMBOLS && hash->bloom_words <= MAX_SYMBOLS ? 0 : -1;
}

static struct range addresses_of(const struct tables *tables, const Elf64_Sym *symbol)
{
    return (struct range){tables->bias + symbol->st_value, tables->bias + symbol->st_value + symbol->st_size};
}

static int is_function(const Elf64_Sym *symbol)
{
    return symbol->st_shndx != SHN_UNDEF && symbol->st_value && ELF64_ST_TYPE(symbol->st_info) == STT_FUNC;
}

struct range image_symbol(int mem, const struct module *module, const char *name)
{
    const struct range none = {0, 0};
    struct tables tables;
    struct hash hash;
    if (!module || find_tables(mem, module, &tables) < 0 || read_hash(mem, &tables, &hash) < 0)
        return none;
    uint32_t wanted = 5381, index;
    for (const char *c = name; *c; c++)
        wanted = wanted * 33 + (unsigned char)*c;
    uint64_t buckets = buckets_of(&tables, &hash), chains = buckets + (uint64_t)hash.buckets * 4;
    if (read_memory(mem, buckets + (wanted % hash.buckets) * 4, &index, 4) < 0 || index < hash.first)
        return none;
    for (uint32_t tries = 0; tries < MAX_SYMBOLS; tries++, index++) {
        uint32_t chain;
        char found[64] = "";
        Elf64_Sym symbol;
        if (read_memory(mem, chains + (uint64_t)(index - hash.first) * 4, &chain, 4) < 0)
            return none;
        if ((chain | 1) == (wanted | 1) && read_memory(mem, tables.symbols + index * sizeof symbol, &symbol, sizeof symbol) == 0 &&
            is_function(&symbol) && symbol.st_name + strlen(name) < tables.strings_size &&
            read_memory(mem, tables.strings + symbol.st_name, found, strlen(name) + 1) == 0 && strcmp(found, name) == 0)
            return addresses_of(&tables, &symbol);
        if (chain & 1)
            return none;
    }
    return none;
}

/* How many symbols there are, by the last chain; 0 where that cannot be told. */
static uint32_t count_symbols(int mem, const struct tables *tables, const struct hash *hash)
{
    uint64_t buckets = buckets_of(tables, hash), chains = buckets + (uint64_t)hash->buckets * 4;
    uint32_t *heads = malloc((size_t)hash->buckets * 4), last = 0, chain = 0;
    if (heads && read_memory(mem, buckets, heads, (size_t)hash->buckets * 4) == 0)
        for (uint32_t i = 0; i < hash->buckets; i++)
            last = heads[i] > last ? heads[i] : last;
    free(heads);
    if (last < hash->first || last > MAX_SYMBOLS)
        return 0;
    while (last < MAX_SYMBOLS && read_memory(mem, chains + (uint64_t)(last - hash->first) * 4, &chain, 4) == 0) {
        last++;
        if (chain & 1)
            return last;
    }
    return 0;
}

static int of_the_allocator(const char *name)
{
    static const char *const names[] = {
        "malloc", "free", "calloc", "realloc", "memalign", "__libc_memalign", "aligned_alloc", "posix_memalign", "valloc", "pvalloc",
        "cfree", "free_sized", "free_aligned_sized", "__libc_malloc", "__libc_free", "__libc_calloc", "__libc_realloc",
        "__libc_valloc", "__libc_pvalloc", "__posix_memalign", "__malloc_hugepages", "__libc_mallopt", "__default_morecore",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return 1;
    return strncmp(name, "malloc_", 7) == 0 || strncmp(name, "mall", 4) == 0;
}

struct range image_allocator(int mem, const struct module *libc)
{
    struct range found = {UINT64_MAX, 0}, border = {0, UINT64_MAX};
    struct tables tables;
    struct hash hash;
    uint32_t count;
    if (find_tables(mem, libc, &tables) < 0 || read_hash(mem, &tables, &hash) < 0 || !(count = count_symbols(mem, &tables, &hash)))
        return (struct range){0, 0};
    Elf64_Sym *symbols = malloc(count * sizeof *symbols);
    char *strings = malloc(tables.strings_size);
    int readable = symbols && strings && read_memory(mem, tables.symbols, symbols, count * sizeof *symbols) == 0 &&
                   read_memory(mem, tables.strings, strings, tables.strings_size) == 0;
    if (readable)
        strings[tables.strings_size - 1] = 0;
    for (int pass = 0; pass < 2 && readable; pass++)
        for (uint32_t i = 0; i < count; i++) {
            if (!is_function(&symbols[i]) || symbols[i].st_name >= tables.strings_size)
                continue;
            struct range at = addresses_of(&tables, &symbols[i]);
            int ours = of_the_allocator(strings + symbols[i].st_name);
            if (pass == 0 && ours) {
                found.start = at.start < found.start ? at.start : found.start;
                found.end = at.end > found.end ? at.end : found.end;
            } else if (pass == 1 && !ours) {
                if (at.end <= found.start && at.end > border.start)
                    border.start = at.end;
                if (at.start >= found.end && at.start < border.end)
                    border.end = at.start;
            }
        }
    free(symbols);
    free(strings);
    if (found.start >= found.end || !border.start || border.end == UINT64_MAX)
        return (struct range){0, 0};
    return border;
}
