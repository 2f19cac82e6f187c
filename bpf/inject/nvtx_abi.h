/* The few declarations of NVTX 3 that are used, so that the build needs none of its headers. A test compares them with the real ones where
 * there are any (nvToolsExt.h, nvtxDetail/nvtxTypes.h). NVTX is compiled into every library that uses it, each copy with function pointers of
 * its own, which an injection library fills in when it is asked to. */
#ifndef GPUPROF_NVTX_ABI_H
#define GPUPROF_NVTX_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <wchar.h>

enum { NVTX_TABLE_CALLBACKS = 1 }; /* of the export tables */

enum { NVTX_MODULE_CORE = 1, NVTX_MODULE_CORE2 = 5 };

enum nvtx_core {
    NVTX_CORE_RangeStartEx = 4, NVTX_CORE_RangeStartA = 5, NVTX_CORE_RangeStartW = 6, NVTX_CORE_RangeEnd = 7,
    NVTX_CORE_RangePushEx = 8, NVTX_CORE_RangePushA = 9, NVTX_CORE_RangePushW = 10, NVTX_CORE_RangePop = 11,
};

enum nvtx_core2 {
    NVTX_CORE2_DomainRangeStartEx = 2, NVTX_CORE2_DomainRangeEnd = 3, NVTX_CORE2_DomainRangePushEx = 4, NVTX_CORE2_DomainRangePop = 5,
    NVTX_CORE2_DomainRegisterStringA = 10, NVTX_CORE2_DomainRegisterStringW = 11, NVTX_CORE2_DomainCreateA = 12,
    NVTX_CORE2_DomainCreateW = 13,
};

enum nvtx_message { NVTX_MESSAGE_ASCII = 1, NVTX_MESSAGE_WIDE = 2, NVTX_MESSAGE_OF_STRING = 3 };

enum { NVTX_NOT_TRACKED = -2 }; /* what push and pop answer where nobody keeps count */

typedef void (*nvtx_function)(void);

struct nvtx_callbacks {
    size_t struct_size;
    int (*get_module)(int module, nvtx_function ***table, unsigned *size);
};

typedef const void *(*nvtx_get_table)(uint32_t id);

struct nvtx_event {
    uint16_t version;
    uint16_t size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type;
    int32_t reserved;
    uint64_t payload;
    int32_t message_type;
    const void *message;
};

#endif
