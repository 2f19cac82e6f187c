/* A libcupti without a GPU (mock_cupti.h): one subscriber, callbacks only where it subscribed, and the full detach. -DMOCK_OLD leaves out what
 * CUPTI 11 lacks, -DMOCK_INCOMPLETE cuptiFinalize. */
#define _GNU_SOURCE
#include "mock_cupti.h"

#include <dlfcn.h>
#include <signal.h>
#include <string.h>

enum { CALLBACK_IDS = 1024, NOT_COMPATIBLE = 38, OLD_PARAMS_SIZE = 32 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards who subscribes */
static _Atomic(cupti_callback) callback;
static void *_Atomic callback_user;
static char subscriber_name[64];
static atomic_uchar callback_enabled[CALLBACK_IDS];
static __thread int in_exit_callback;

/* ---- the driver's hooks --------------------------------------------------------------------------------------------------- */

static void call_back(struct mock_call *call, uint32_t site)
{
    cupti_callback function = atomic_load(&callback);
    if (!function || call->cbid >= CALLBACK_IDS || !atomic_load(&callback_enabled[call->cbid]))
        return;
    struct cupti_callback_data data = {
        .site = site,
        .function_name = call->name,
        .params = call->params,
        .return_value = site == SITE_EXIT ? &call->result : NULL,
        .correlation_data = &call->correlation_data,
        .correlation_id = call->correlation,
    };
    if (site == SITE_EXIT)
        COUNT(exits)++;
    else
        COUNT(enters)++;
    in_exit_callback = site == SITE_EXIT;
    function(atomic_load(&callback_user), DOMAIN_DRIVER_API, call->cbid, &data);
    in_exit_callback = 0;
}

static void enter(struct mock_call *call)
{
    call->correlation = atomic_fetch_add(&next_correlation, 1);
    call_back(call, SITE_ENTER);
}

static void leave(struct mock_call *call) { call_back(call, SITE_EXIT); }

static const struct mock_tools hooks = {enter, activity_add, leave};

static void install(const struct mock_tools *tools)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void (*set)(const struct mock_tools *) = NULL;
    if (!driver)
        return;
    *(void **)&set = dlsym(driver, "mock_cuda_install");
    if (set)
        set(tools);
    dlclose(driver);
}

/* ---- CUPTI's functions ------------------------------------------------------------------------------------------------------ */

cupti_result cuptiGetVersion(uint32_t *version)
{
    *version = 130500;
    return CUPTI_OK;
}

cupti_result cuptiGetTimestamp(uint64_t *timestamp)
{
    if (mock_gone())
        return NOT_INITIALIZED;
    *timestamp = mock_cupti_ns();
    return CUPTI_OK;
}

static cupti_result subscribe(cupti_subscriber *subscriber, cupti_callback function, void *user, const char *name, char *old,
                              size_t old_size)
{
    if (mock_gone())
        return NOT_INITIALIZED;
    mock_sleep_ms(SETTING(subscribe_ms));
    cupti_result result = (cupti_result)SETTING(subscribe_result);
    pthread_mutex_lock(&lock);
    if (result == CUPTI_OK && atomic_load(&callback)) {
        result = CUPTI_MULTIPLE_SUBSCRIBERS;
        if (old)
            memcpy(old, subscriber_name, old_size < sizeof subscriber_name ? old_size : sizeof subscriber_name);
    }
    if (result == CUPTI_OK) {
        memset(subscriber_name, 0, sizeof subscriber_name);
        if (name) {
            strcpy(subscriber_name, "CUPTI for ");
            strncat(subscriber_name, name, 53);
        }
        atomic_store(&callback_user, user);
        atomic_store(&callback, function);
        *subscriber = &callback;
        COUNT(subscribes)++;
        COUNT(subscribers) = 1;
        install(&hooks);
    } else {
        COUNT(refusals)++;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

cupti_result cuptiSubscribe(cupti_subscriber *subscriber, cupti_callback function, void *user)
{
    return subscribe(subscriber, function, user, NULL, NULL, 0);
}

#ifndef MOCK_OLD
cupti_result cuptiSubscribe_v2(cupti_subscriber *subscriber, cupti_callback function, void *user, struct cupti_subscriber_params *params)
{
    if (!params || params->struct_size > (size_t)SETTING(params_size) || params->struct_size < OLD_PARAMS_SIZE)
        return CUPTI_INVALID_PARAMETER;
    return subscribe(subscriber, function, user, params->subscriber_name, params->old_subscriber_name, params->old_subscriber_size);
}

cupti_result cuptiGetStreamIdEx(void *context, void *stream, uint8_t per_thread, uint32_t *id)
{
    (void)context, (void)per_thread;
    if (mock_gone())
        return NOT_INITIALIZED;
    if (stream == MOCK_NO_STREAM) {
        COUNT(fault_bad_stream)++;
        return CUPTI_INVALID_PARAMETER;
    }
    *id = stream ? (uint32_t)(uintptr_t)stream : 7; /* as mock_cuda.c numbers them */
    return CUPTI_OK;
}

cupti_result cuptiGetResultString(cupti_result result, const char **text)
{
    *text = result == CUPTI_OK ? "CUPTI_SUCCESS" : result == NOT_COMPATIBLE ? "CUPTI_ERROR_NOT_COMPATIBLE" : "CUPTI_ERROR_OF_THE_MOCK";
    return CUPTI_OK;
}
#endif

cupti_result cuptiUnsubscribe(cupti_subscriber subscriber)
{
    if (mock_gone())
        return NOT_INITIALIZED;
    if (subscriber != (void *)&callback)
        return CUPTI_INVALID_PARAMETER;
    pthread_mutex_lock(&lock);
    atomic_store(&callback, NULL);
    for (int i = 0; i < CALLBACK_IDS; i++)
        atomic_store(&callback_enabled[i], 0);
    COUNT(callbacks_enabled) = 0;
    COUNT(subscribers) = 0;
    pthread_mutex_unlock(&lock);
    return CUPTI_OK;
}

cupti_result cuptiEnableCallback(uint32_t enable, cupti_subscriber subscriber, int domain, uint32_t cbid)
{
    if (mock_gone())
        return NOT_INITIALIZED;
    if (subscriber != (void *)&callback || domain != DOMAIN_DRIVER_API || cbid >= CALLBACK_IDS)
        return CUPTI_INVALID_PARAMETER;
    if (atomic_exchange(&callback_enabled[cbid], enable != 0) != (enable != 0))
        COUNT(callbacks_enabled) += enable ? 1 : -1;
    return CUPTI_OK;
}

#ifndef MOCK_INCOMPLETE
cupti_result cuptiFinalize(void)
{
    if (mock_gone())
        return NOT_INITIALIZED;
    if (!in_exit_callback)
        COUNT(fault_finalize_outside_exit)++;
    sigset_t blocked;
    if (pthread_sigmask(SIG_SETMASK, NULL, &blocked) == 0 && !sigismember(&blocked, SIGTERM))
        COUNT(fault_signals_open)++;
    if (SETTING(finalize_result) != CUPTI_OK)
        return (cupti_result)SETTING(finalize_result);
    install(NULL);
    activity_finalize();
    cuptiUnsubscribe(&callback);
    unsigned first = (unsigned)SETTING(first_correlation);
    atomic_store(&next_correlation, first ? first : 1);
    COUNT(finalizes)++;
    return CUPTI_OK;
}
#endif
