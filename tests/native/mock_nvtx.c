/* A program's use of NVTX (harness.c hands its lines on), and what of NVTX's headers that needs (mock_nvtx.h). */
#define _GNU_SOURCE
#include "mock_nvtx.h"
#include "mock_gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef REAL_NVTX

/* Names and numbers are those of NVTX's own enumerations. */
#define CORE(X) X(RangePushEx, 8) X(RangePushA, 9) X(RangePushW, 10) X(RangePop, 11) X(RangeStartA, 5) X(RangeEnd, 7)
#define CORE2(X)                                                                                                       \
    X(DomainRangeStartEx, 2) X(DomainRangeEnd, 3) X(DomainRangePushEx, 4) X(DomainRangePop, 5) X(DomainRegisterStringA, 10) X(DomainCreateA, 12)

typedef void (*function)(void);

#define POINTER(name, id) static function name##_pointer;
CORE(POINTER) CORE2(POINTER)

static function *core_table[16], *core2_table[16];

static int get_module(int module, function ***table, unsigned *size)
{
    *table = module == 1 ? core_table : module == 5 ? core2_table : NULL;
    *size = 16;
    return *table != NULL;
}

static const struct {
    size_t struct_size;
    int (*get_module)(int module, function ***table, unsigned *size);
} callbacks = {sizeof callbacks, get_module};

static const void *get_export_table(uint32_t id) { return id == 1 ? &callbacks : NULL; }

static void load(void)
{
    static int once;
    const char *path = getenv("NVTX_INJECTION64_PATH");
    if (once++ || !path)
        return;
#define PLACE(name, id) core_table[id] = &name##_pointer;
    CORE(PLACE)
#undef PLACE
#define PLACE(name, id) core2_table[id] = &name##_pointer;
    CORE2(PLACE)
    void *library = dlopen(path, RTLD_LAZY);
    int (*initialize)(const void *(*)(uint32_t)) = NULL;
    if (library)
        *(void **)&initialize = dlsym(library, "InitializeInjectionNvtx2");
    if (!initialize || !initialize(get_export_table))
        abort();
}

#define CALL(result, otherwise, name, types, ...)                                                                      \
    load();                                                                                                            \
    return name##_pointer ? ((result(*) types)name##_pointer)(__VA_ARGS__) : otherwise

int nvtxRangePushA(const char *text) { CALL(int, -2, RangePushA, (const char *), text); }
int nvtxRangePushW(const wchar_t *text) { CALL(int, -2, RangePushW, (const wchar_t *), text); }
int nvtxRangePushEx(const nvtxEventAttributes_t *event) { CALL(int, -2, RangePushEx, (const nvtxEventAttributes_t *), event); }
int nvtxRangePop(void) { CALL(int, -2, RangePop, (void)); }
nvtxRangeId_t nvtxRangeStartA(const char *text) { CALL(uint64_t, 0, RangeStartA, (const char *), text); }
void nvtxRangeEnd(nvtxRangeId_t id) { CALL(void, (void)0, RangeEnd, (uint64_t), id); }
int nvtxDomainRangePushEx(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event)
{
    CALL(int, -2, DomainRangePushEx, (nvtxDomainHandle_t, const nvtxEventAttributes_t *), domain, event);
}
int nvtxDomainRangePop(nvtxDomainHandle_t domain) { CALL(int, -2, DomainRangePop, (nvtxDomainHandle_t), domain); }
nvtxRangeId_t nvtxDomainRangeStartEx(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event)
{
    CALL(uint64_t, 0, DomainRangeStartEx, (nvtxDomainHandle_t, const nvtxEventAttributes_t *), domain, event);
}
void nvtxDomainRangeEnd(nvtxDomainHandle_t domain, nvtxRangeId_t id)
{
    CALL(void, (void)0, DomainRangeEnd, (nvtxDomainHandle_t, uint64_t), domain, id);
}
nvtxDomainHandle_t nvtxDomainCreateA(const char *name) { CALL(nvtxDomainHandle_t, NULL, DomainCreateA, (const char *), name); }
nvtxStringHandle_t nvtxDomainRegisterStringA(nvtxDomainHandle_t domain, const char *text)
{
    CALL(nvtxStringHandle_t, NULL, DomainRegisterStringA, (nvtxDomainHandle_t, const char *), domain, text);
}

#endif

/* ---- what a line says ------------------------------------------------------------------------------------------------------ */

static nvtxDomainHandle_t domain_named(const char *name)
{
    static char names[8][32];
    static nvtxDomainHandle_t handles[8];
    int i = 0;
    while (i < 8 && names[i][0] && strcmp(names[i], name) != 0)
        i++;
    if (i == 8)
        abort();
    if (!names[i][0]) {
        strncpy(names[i], name, sizeof *names - 1);
        handles[i] = nvtxDomainCreateA(name);
    }
    return handles[i];
}

static nvtxEventAttributes_t event_of(const char *text)
{
    nvtxEventAttributes_t event = {0};
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event.messageType = NVTX_MESSAGE_TYPE_ASCII;
    event.message.ascii = text;
    return event;
}

static int is(const char *line, const char *word)
{
    size_t n = strlen(word);
    return strncmp(line, word, n) == 0 && (line[n] == 0 || line[n] == '\n');
}

int mock_nvtx_obey(const char *line, long *answer)
{
    char text[600], domain[32];
    long count = 0;
    if (sscanf(line, "push_wide %599s", text) == 1) {
        wchar_t wide[600];
        size_t i = 0;
        for (; text[i]; i++)
            wide[i] = text[i] == '_' ? 0x1f600 : (wchar_t)text[i];
        wide[i] = 0;
        *answer = nvtxRangePushW(wide);
    } else if (sscanf(line, "push_event %599s", text) == 1) {
        nvtxEventAttributes_t event = event_of(text);
        *answer = nvtxRangePushEx(&event);
    } else if (sscanf(line, "push_registered %31s %599s", domain, text) == 2) {
        nvtxEventAttributes_t event = event_of(NULL);
        event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
        event.message.registered = nvtxDomainRegisterStringA(domain_named(domain), text);
        *answer = nvtxDomainRangePushEx(domain_named(domain), &event);
    } else if (sscanf(line, "push_in %31s %599s", domain, text) == 2) {
        nvtxEventAttributes_t event = event_of(text);
        *answer = nvtxDomainRangePushEx(domain_named(domain), &event);
    } else if (is(line, "push_nothing")) {
        nvtxEventAttributes_t event = event_of(NULL);
        event.messageType = NVTX_MESSAGE_UNKNOWN;
        *answer = nvtxRangePushEx(&event);
    } else if (sscanf(line, "push %599s", text) == 1)
        *answer = nvtxRangePushA(text);
    else if (sscanf(line, "pop_in %31s", domain) == 1)
        *answer = nvtxDomainRangePop(domain_named(domain));
    else if (is(line, "pop"))
        *answer = nvtxRangePop();
    else if (sscanf(line, "start_range %599s", text) == 1)
        *answer = (long)nvtxRangeStartA(text);
    else if (sscanf(line, "end_range %ld", &count) == 1) {
        nvtxRangeEnd((nvtxRangeId_t)count);
        *answer = 0;
    } else if (sscanf(line, "ranges %599s %ld", text, &count) == 2) {
        for (long i = 0; i < count; i++) {
            nvtxRangePushA(text);
            nvtxRangePop();
        }
        *answer = count;
    } else if (sscanf(line, "many_ranges %ld", &count) == 1) {
        for (long i = 0; i < count; i++) {
            snprintf(text, sizeof text, "range_with_a_name_of_its_own_%ld", i);
            nvtxRangePushA(text);
            nvtxRangePop();
        }
        *answer = count;
    } else if (sscanf(line, "nest %ld", &count) == 1) {
        for (long i = 0; i < count; i++)
            nvtxRangePushA("nested");
        for (*answer = 0; nvtxRangePop() >= 0; ++*answer)
            ;
    } else
        return 0;
    return 1;
}
