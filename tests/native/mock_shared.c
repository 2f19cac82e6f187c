/* What one of several subscribers calls (mock_cupti.h); only with -DMOCK_MULTI. A handle that nobody has any more is a fault, except where it is
 * asked for the time: by that a client finds out that somebody else has finalized CUPTI. */
#define _GNU_SOURCE
#include "mock_cupti.h"

#ifdef MOCK_MULTI

static struct subscriber *known(cupti_subscriber handle)
{
    struct subscriber *found = mock_gone() ? NULL : subscriber_of(handle);
    if (!found)
        COUNT(fault_stale)++;
    return found;
}

cupti_result cuptiActivityRegisterCallbacks_v2(cupti_subscriber handle, cupti_shared_requested requested, cupti_shared_completed completed)
{
    struct subscriber *subscriber = known(handle);
    if (!subscriber || !is_shared())
        return CUPTI_INVALID_PARAMETER;
    activity_register(&subscriber->client, NULL, NULL, requested, completed);
    return CUPTI_OK;
}

cupti_result cuptiActivityEnable_v2(cupti_subscriber handle, uint32_t kind, void *config)
{
    struct subscriber *subscriber = known(handle);
    (void)config;
    if (!subscriber)
        return CUPTI_INVALID_PARAMETER;
    if (kind == ACTIVITY_CONCURRENT_KERNEL && !subscriber->client.is_other && SETTING(activity_result) != CUPTI_OK)
        return (cupti_result)SETTING(activity_result);
    return activity_enable(&subscriber->client, kind, 1);
}

cupti_result cuptiActivityDisable_v2(cupti_subscriber handle, uint32_t kind, void *config)
{
    struct subscriber *subscriber = known(handle);
    (void)config;
    return subscriber ? activity_enable(&subscriber->client, kind, 0) : CUPTI_INVALID_PARAMETER;
}

cupti_result cuptiActivityGetNextRecord_v2(cupti_subscriber handle, uint8_t *buffer, size_t valid, void **record)
{
    return known(handle) ? activity_next(buffer, valid, record) : CUPTI_INVALID_PARAMETER;
}

cupti_result cuptiActivityGetNumDroppedRecords_v2(cupti_subscriber handle, void *context, uint32_t stream, size_t *dropped)
{
    struct subscriber *subscriber = known(handle);
    (void)context, (void)stream;
    if (!subscriber)
        return CUPTI_INVALID_PARAMETER;
    *dropped = activity_lost(&subscriber->client);
    return CUPTI_OK;
}

cupti_result cuptiActivityGetAttribute_v2(cupti_subscriber handle, uint32_t attribute, size_t *size, void *value)
{
    if (!known(handle) || *size != 1)
        return CUPTI_INVALID_PARAMETER;
    if (attribute == ATTR_USER_DEFINED_RECORDS)
        *(uint8_t *)value = SETTING(user_records) != 0;
    else if (attribute == ATTR_SHARED_GRAPH_TRACE)
        *(uint8_t *)value = SETTING(whole_graphs) != 0;
    else
        return CUPTI_INVALID_PARAMETER;
    return CUPTI_OK;
}

cupti_result cuptiGetTimestamp_v2(cupti_subscriber handle, uint64_t *timestamp)
{
    if (mock_gone())
        return NOT_INITIALIZED;
    if (!subscriber_of(handle))
        return CUPTI_INVALID_PARAMETER;
    *timestamp = mock_cupti_ns();
    return CUPTI_OK;
}

#endif
