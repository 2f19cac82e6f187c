/* A libcupti without a GPU (mock_cupti.h): one subscriber, or several with -DMOCK_MULTI, callbacks only where they subscribed, and the full
 * detach. -DMOCK_OLD leaves out what CUPTI 11 lacks, -DMOCK_INCOMPLETE cuptiFinalize. */
#define _GNU_SOURCE
#include "mock_cupti.h"

#include <dlfcn.h>
#include <signal.h>
#include <string.h>

enum { NOT_COMPATIBLE = 38, OLD_PARAMS_SIZE = 32 };
enum { ALLOWS_ONE, ALLOWS_SEVERAL, NOBODY_SAID };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards who subscribes */
struct subscriber subscribers[SUBSCRIBERS];
static atomic_int allows = NOBODY_SAID;
static uintptr_t given_out = 0x1000;
static __thread int in_exit_callback;

struct subscriber *subscriber_of(cupti_subscriber handle)
{
    for (int i = 0; handle && i < SUBSCRIBERS; i++)
        if (atomic_load(&subscribers[i].handle) == (uintptr_t)handle)
            return &subscribers[i];
    return NULL;
}

static int in_use(void)
{
    int number = 0;
    for (int i = 0; i < SUBSCRIBERS; i++)
        number += atomic_load(&subscribers[i].handle) != 0;
    return number;
}

int is_shared(void) { return atomic_load(&allows) == ALLOWS_SEVERAL && in_use() > 0; }

void old_function(void)
{
    if (is_shared())
        COUNT(fault_old_function)++;
}

/* ---- the driver's hooks --------------------------------------------------------------------------------------------------- */

static void call_one(struct subscriber *subscriber, struct mock_call *call, uint32_t site)
{
    cupti_callback function = atomic_load(&subscriber->callback);
    if (!function || !atomic_load(&subscriber->callback_enabled[call->cbid]))
        return;
    struct cupti_callback_data data = {
        .site = site,
        .function_name = call->name,
        .params = call->params,
        .return_value = site == SITE_EXIT ? &call->result : NULL,
        .correlation_data = &call->correlation_data, /* which all subscribers have in common */
        .correlation_id = call->correlation,
    };
    if (!subscriber->client.is_other && site == SITE_EXIT)
        COUNT(exits)++;
    else if (!subscriber->client.is_other)
        COUNT(enters)++;
    in_exit_callback = site == SITE_EXIT;
    function(atomic_load(&subscriber->user), DOMAIN_DRIVER_API, call->cbid, &data);
    in_exit_callback = 0;
}

static void call_back(struct mock_call *call, uint32_t site)
{
    for (int i = 0; i < SUBSCRIBERS && call->cbid < CALLBACK_IDS; i++)
        call_one(&subscribers[i], call, site);
}

/* A call that makes or destroys a graph is under way: the real one may crash where it is let go of meanwhile. */
static atomic_int in_graph;

static int is_of_graph(uint32_t cbid)
{
    return cbid == CBID_BEGIN_CAPTURE_V2 || cbid == CBID_END_CAPTURE || cbid == CBID_INSTANTIATE_FLAGS || cbid == CBID_EXEC_DESTROY;
}

static void let_go(void)
{
    if (atomic_load(&in_graph) > 0)
        COUNT(fault_in_graph)++;
}

static void enter(struct mock_call *call)
{
    atomic_fetch_add(&in_graph, is_of_graph(call->cbid));
    call->correlation = atomic_fetch_add(&next_correlation, 1);
    call_back(call, SITE_ENTER);
}

static void leave(struct mock_call *call)
{
    call_back(call, SITE_EXIT);
    if (is_of_graph(call->cbid) && atomic_load(&in_graph) > 0) /* the enter of one may have been before there were hooks */
        atomic_fetch_sub(&in_graph, 1);
}

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
    old_function();
    *timestamp = mock_cupti_ns();
    return CUPTI_OK;
}

static cupti_result subscribe(cupti_subscriber *subscriber, cupti_callback function, void *user, const char *name, char *old,
                              size_t old_size, int allow)
{
    if (mock_gone())
        return NOT_INITIALIZED;
    mock_sleep_ms(SETTING(subscribe_ms));
    cupti_result result = (cupti_result)SETTING(subscribe_result);
    pthread_mutex_lock(&lock);
    struct subscriber *free_one = NULL, *first = NULL;
    for (int i = 0; i < SUBSCRIBERS; i++) {
        if (!atomic_load(&subscribers[i].handle) && !free_one)
            free_one = &subscribers[i];
        if (atomic_load(&subscribers[i].handle) && (!first || subscribers[i].handle < first->handle))
            first = &subscribers[i];
    }
    int is_other = !name || strcmp(name, "gpuprof") != 0, said = atomic_load(&allows);
    if (old && first)
        memcpy(old, first->name, old_size < sizeof first->name ? old_size : sizeof first->name);
    if (result == CUPTI_OK && ((first && !(allow && said == ALLOWS_SEVERAL)) || (!first && said != NOBODY_SAID && said != allow) || !free_one))
        result = CUPTI_MULTIPLE_SUBSCRIBERS;
    if (result == CUPTI_OK) {
        memset(free_one->name, 0, sizeof free_one->name);
        if (name) {
            strcpy(free_one->name, "CUPTI for ");
            strncat(free_one->name, name, 53);
        }
        free_one->client.is_other = is_other;
        atomic_store(&allows, allow);
        atomic_store(&free_one->user, user);
        atomic_store(&free_one->callback, function);
        atomic_store(&free_one->handle, given_out += 16);
        *subscriber = (void *)given_out;
        if (!is_other)
            COUNT(subscribes)++;
        COUNT(subscribers)++;
        install(&hooks);
    } else {
        COUNT(refusals)++;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

cupti_result cuptiSubscribe(cupti_subscriber *subscriber, cupti_callback function, void *user)
{
    return subscribe(subscriber, function, user, NULL, NULL, 0, ALLOWS_ONE);
}

#ifndef MOCK_OLD
cupti_result cuptiSubscribe_v2(cupti_subscriber *subscriber, cupti_callback function, void *user, struct cupti_subscriber_params *params)
{
    if (!params || params->struct_size > (size_t)SETTING(params_size) || params->struct_size < OLD_PARAMS_SIZE)
        return CUPTI_INVALID_PARAMETER;
    int allow = ALLOWS_ONE;
#ifdef MOCK_MULTI
    if (params->struct_size > OLD_PARAMS_SIZE && params->allow_multiple)
        allow = ALLOWS_SEVERAL;
#else
    if (params->struct_size > OLD_PARAMS_SIZE && params->allow_multiple)
        return CUPTI_MULTIPLE_SUBSCRIBERS; /* a driver that is too old */
#endif
    return subscribe(subscriber, function, user, params->subscriber_name, params->old_subscriber_name, params->old_subscriber_size, allow);
}

cupti_result cuptiGetStreamIdEx(void *context, void *stream, uint8_t per_thread, uint32_t *id)
{
    (void)context;
    if (mock_gone())
        return NOT_INITIALIZED;
    if (stream == MOCK_NO_STREAM) {
        COUNT(fault_bad_stream)++;
        return CUPTI_INVALID_PARAMETER;
    }
    *id = stream ? (uint32_t)(uintptr_t)stream : per_thread ? 8 : 7; /* as mock_cuda.c numbers them */
    return CUPTI_OK;
}

cupti_result cuptiGetResultString(cupti_result result, const char **text)
{
    *text = result == CUPTI_OK ? "CUPTI_SUCCESS" : result == NOT_COMPATIBLE ? "CUPTI_ERROR_NOT_COMPATIBLE" : "CUPTI_ERROR_OF_THE_MOCK";
    return CUPTI_OK;
}
#endif

/* With `lock`. */
static void leave_out(struct subscriber *subscriber)
{
    atomic_store(&subscriber->handle, 0);
    atomic_store(&subscriber->callback, NULL);
    for (int i = 0; i < CALLBACK_IDS; i++)
        if (atomic_exchange(&subscriber->callback_enabled[i], 0) && !subscriber->client.is_other)
            COUNT(callbacks_enabled)--;
    COUNT(subscribers)--;
}

cupti_result cuptiUnsubscribe(cupti_subscriber handle)
{
    if (mock_gone())
        return NOT_INITIALIZED;
    pthread_mutex_lock(&lock);
    struct subscriber *subscriber = subscriber_of(handle);
    if (!subscriber) {
        pthread_mutex_unlock(&lock);
        return CUPTI_INVALID_PARAMETER;
    }
    if (!subscriber->client.is_other) {
        COUNT(unsubscribes)++;
        let_go();
    }
    leave_out(subscriber);
    if (atomic_load(&allows) == ALLOWS_SEVERAL)
        activity_forget(&subscriber->client);
    if (in_use() == 0 && !(SETTING(sticky) && atomic_load(&allows) == ALLOWS_SEVERAL))
        atomic_store(&allows, NOBODY_SAID);
    pthread_mutex_unlock(&lock);
    return CUPTI_OK;
}

cupti_result cuptiEnableCallback(uint32_t enable, cupti_subscriber handle, int domain, uint32_t cbid)
{
    if (mock_gone())
        return NOT_INITIALIZED;
    struct subscriber *subscriber = subscriber_of(handle);
    if (!subscriber) {
        COUNT(fault_stale)++;
        return CUPTI_INVALID_PARAMETER;
    }
    if (domain != DOMAIN_DRIVER_API || cbid >= CALLBACK_IDS)
        return CUPTI_INVALID_PARAMETER;
    if (atomic_exchange(&subscriber->callback_enabled[cbid], enable != 0) != (enable != 0) && !subscriber->client.is_other)
        COUNT(callbacks_enabled) += enable ? 1 : -1;
    return CUPTI_OK;
}

static void finalize(void)
{
    let_go();
    install(NULL);
    atomic_store(&in_graph, 0);
    activity_finalize();
    pthread_mutex_lock(&lock);
    for (int i = 0; i < SUBSCRIBERS; i++)
        if (atomic_load(&subscribers[i].handle))
            leave_out(&subscribers[i]);
    atomic_store(&allows, NOBODY_SAID);
    pthread_mutex_unlock(&lock);
}

void mock_cupti_finalize(void)
{
    finalize();
    COUNT(other_finalizes)++;
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
    finalize();
    unsigned first = (unsigned)SETTING(first_correlation);
    atomic_store(&next_correlation, first ? first : 1);
    COUNT(finalizes)++;
    return CUPTI_OK;
}
#endif
