/* What NVTX 3's headers are to a program: functions that load the library named by NVTX_INJECTION64_PATH at the first call, have it fill a table
 * of function pointers, and call through that; nothing where there is no such library. Only what the harness calls. With -DREAL_NVTX the real
 * headers take its place. */
#ifndef MOCK_NVTX_H
#define MOCK_NVTX_H

#ifdef REAL_NVTX
#include <nvtx3/nvToolsExt.h>
#else

#include <stddef.h>
#include <stdint.h>
#include <wchar.h>

#define NVTX_VERSION 3
#define NVTX_EVENT_ATTRIB_STRUCT_SIZE ((uint16_t)sizeof(nvtxEventAttributes_t))

typedef uint64_t nvtxRangeId_t;
typedef struct nvtx_domain_handle *nvtxDomainHandle_t;
typedef struct nvtx_string_handle *nvtxStringHandle_t;

enum { NVTX_MESSAGE_UNKNOWN, NVTX_MESSAGE_TYPE_ASCII, NVTX_MESSAGE_TYPE_UNICODE, NVTX_MESSAGE_TYPE_REGISTERED };

typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t colorType;
    uint32_t color;
    int32_t payloadType, reserved0;
    union {
        uint64_t ullValue;
    } payload;
    int32_t messageType;
    union {
        const char *ascii;
        const wchar_t *unicode;
        nvtxStringHandle_t registered;
    } message;
} nvtxEventAttributes_t;

int nvtxRangePushA(const char *text);
int nvtxRangePushW(const wchar_t *text);
int nvtxRangePushEx(const nvtxEventAttributes_t *event);
int nvtxRangePop(void);
nvtxRangeId_t nvtxRangeStartA(const char *text);
void nvtxRangeEnd(nvtxRangeId_t id);
int nvtxDomainRangePushEx(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event);
int nvtxDomainRangePop(nvtxDomainHandle_t domain);
nvtxRangeId_t nvtxDomainRangeStartEx(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event);
void nvtxDomainRangeEnd(nvtxDomainHandle_t domain, nvtxRangeId_t id);
nvtxDomainHandle_t nvtxDomainCreateA(const char *name);
nvtxStringHandle_t nvtxDomainRegisterStringA(nvtxDomainHandle_t domain, const char *text);

#endif
#endif
