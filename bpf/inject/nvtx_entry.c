/* What NVTX calls of us. Loaded through NVTX_INJECTION64_PATH at the first call of NVTX, by each library that has NVTX compiled in; one handle
 * is returned for all of them. */
#include "nvtx.h"
#include "nvtx_abi.h"

#define EXPORT __attribute__((visibility("default")))

static const void *message_of(const struct nvtx_event *event, int *type)
{
    *type = 0;
    if (!event || event->size < sizeof *event)
        return NULL;
    *type = event->message_type;
    return event->message;
}

static int push_ex(const struct nvtx_event *event)
{
    int type;
    const void *message = message_of(event, &type);
    return nvtx_push(NULL, type, message);
}
static int push_a(const char *text) { return nvtx_push(NULL, NVTX_MESSAGE_ASCII, text); }
static int push_w(const wchar_t *text) { return nvtx_push(NULL, NVTX_MESSAGE_WIDE, text); }
static int pop_default(void) { return nvtx_pop(NULL); }
static uint64_t start_ex(const struct nvtx_event *event)
{
    int type;
    const void *message = message_of(event, &type);
    return nvtx_start(NULL, type, message);
}
static uint64_t start_a(const char *text) { return nvtx_start(NULL, NVTX_MESSAGE_ASCII, text); }
static uint64_t start_w(const wchar_t *text) { return nvtx_start(NULL, NVTX_MESSAGE_WIDE, text); }

static uint64_t domain_start(const void *domain, const struct nvtx_event *event)
{
    int type;
    const void *message = message_of(event, &type);
    return nvtx_start(domain, type, message);
}
static void domain_end(const void *domain, uint64_t id)
{
    (void)domain;
    nvtx_end(id);
}
static int domain_push(const void *domain, const struct nvtx_event *event)
{
    int type;
    const void *message = message_of(event, &type);
    return nvtx_push(domain, type, message);
}
static int domain_pop(const void *domain) { return nvtx_pop(domain); }
static void *register_a(const void *domain, const char *text)
{
    (void)domain;
    return nvtx_keep(text, 0);
}
static void *register_w(const void *domain, const wchar_t *text)
{
    char room[PATH_NAME_BYTES];
    (void)domain;
    nvtx_narrow(text, room, sizeof room);
    return nvtx_keep(room, 0);
}
static void *create_a(const char *text) { return nvtx_keep(text, 1); }
static void *create_w(const wchar_t *text)
{
    char room[PATH_NAME_BYTES];
    nvtx_narrow(text, room, sizeof room);
    return nvtx_keep(room, 1);
}

struct entry {
    unsigned id;
    nvtx_function function;
};

static void fill(const struct nvtx_callbacks *callbacks, int module, const struct entry *entries, size_t number)
{
    nvtx_function **table = NULL;
    unsigned size = 0;
    if (!callbacks->get_module(module, &table, &size) || !table)
        return;
    for (size_t i = 0; i < number; i++)
        if (entries[i].id < size && table[entries[i].id])
            *table[entries[i].id] = entries[i].function;
}

#define ENTRY(id, function) {id, (nvtx_function)function}

/* NVTX calls this once for each copy of it in the process. 1: its calls come here from now on. */
EXPORT int InitializeInjectionNvtx2(nvtx_get_table get_table);
EXPORT int InitializeInjectionNvtx2(nvtx_get_table get_table)
{
    static const struct entry core[] = {
        ENTRY(NVTX_CORE_RangeStartEx, start_ex), ENTRY(NVTX_CORE_RangeStartA, start_a), ENTRY(NVTX_CORE_RangeStartW, start_w),
        ENTRY(NVTX_CORE_RangeEnd, nvtx_end),     ENTRY(NVTX_CORE_RangePushEx, push_ex), ENTRY(NVTX_CORE_RangePushA, push_a),
        ENTRY(NVTX_CORE_RangePushW, push_w),     ENTRY(NVTX_CORE_RangePop, pop_default),
    };
    static const struct entry core2[] = {
        ENTRY(NVTX_CORE2_DomainRangeStartEx, domain_start),   ENTRY(NVTX_CORE2_DomainRangeEnd, domain_end),
        ENTRY(NVTX_CORE2_DomainRangePushEx, domain_push),     ENTRY(NVTX_CORE2_DomainRangePop, domain_pop),
        ENTRY(NVTX_CORE2_DomainRegisterStringA, register_a),  ENTRY(NVTX_CORE2_DomainRegisterStringW, register_w),
        ENTRY(NVTX_CORE2_DomainCreateA, create_a),            ENTRY(NVTX_CORE2_DomainCreateW, create_w),
    };
    const struct nvtx_callbacks *callbacks = get_table ? get_table(NVTX_TABLE_CALLBACKS) : NULL;
    if (!callbacks || callbacks->struct_size < sizeof *callbacks || !callbacks->get_module)
        return 0;
    fill(callbacks, NVTX_MODULE_CORE, core, sizeof core / sizeof *core);
    fill(callbacks, NVTX_MODULE_CORE2, core2, sizeof core2 / sizeof *core2);
    return 1;
}
