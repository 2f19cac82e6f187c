/* The exported half of mock_cupti.c: CUPTI's own functions. */

cupti_result cuptiGetVersion(uint32_t *version)
{
    *version = 130500;
    return CUPTI_OK;
}

cupti_result cuptiGetTimestamp(uint64_t *timestamp)
{
    *timestamp = cupti_ns();
    return CUPTI_OK;
}

static cupti_result take_subscriber(cupti_subscriber *subscriber, cupti_callback function, void *user, const char *name, char *old,
                                    size_t old_size)
{
    if (gone())
        return NOT_INITIALIZED;
    sleep_ms(SETTING(subscribe_ms));
    cupti_result result = (cupti_result)SETTING(subscribe_result);
    pthread_mutex_lock(&lock);
    if (result == CUPTI_OK && atomic_load(&callback)) {
        result = CUPTI_MULTIPLE_SUBSCRIBERS;
        if (old && old_size)
            memcpy(old, subscriber_name, old_size < sizeof subscriber_name ? old_size : sizeof subscriber_name);
    }
    if (result == CUPTI_OK) {
        memset(subscriber_name, 0, sizeof subscriber_name);
        if (name)
            strcpy(subscriber_name, "CUPTI for "), strncat(subscriber_name, name, 53);
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
    return take_subscriber(subscriber, function, user, NULL, NULL, 0);
}

#ifndef MOCK_OLD
cupti_result cuptiSubscribe_v2(cupti_subscriber *subscriber, cupti_callback function, void *user, struct cupti_subscriber_params *params)
{
    if (!params || params->struct_size > (size_t)SETTING(params_size) || params->struct_size < 32)
        return CUPTI_INVALID_PARAMETER;
    return take_subscriber(subscriber, function, user, params->subscriber_name, params->old_subscriber_name, params->old_subscriber_size);
}

cupti_result cuptiActivityFlushPeriod(uint32_t ms)
{
    pthread_mutex_lock(&lock);
    period_ms = ms ? ms : 1000;
    pthread_mutex_unlock(&lock);
    return CUPTI_OK;
}

cupti_result cuptiGetResultString(cupti_result result, const char **text)
{
    *text = result == CUPTI_OK ? "CUPTI_SUCCESS" : result == 38 ? "CUPTI_ERROR_NOT_COMPATIBLE" : "CUPTI_ERROR_OF_THE_MOCK";
    return CUPTI_OK;
}
#endif

cupti_result cuptiUnsubscribe(cupti_subscriber subscriber)
{
    if (gone())
        return NOT_INITIALIZED;
    if (subscriber != &callback)
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
    if (gone())
        return NOT_INITIALIZED;
    if (subscriber != &callback || domain != DOMAIN_DRIVER_API || cbid >= CALLBACK_IDS)
        return CUPTI_INVALID_PARAMETER;
    if (atomic_exchange(&callback_enabled[cbid], enable != 0) != (enable != 0))
        COUNT(callbacks_enabled) += enable ? 1 : -1;
    return CUPTI_OK;
}

cupti_result cuptiActivityRegisterCallbacks(cupti_buffer_requested requested, cupti_buffer_completed completed)
{
    if (gone())
        return NOT_INITIALIZED;
    pthread_mutex_lock(&lock);
    on_requested = requested;
    on_completed = completed;
    pthread_mutex_unlock(&lock);
    return CUPTI_OK;
}

cupti_result cuptiActivityEnable(uint32_t kind)
{
    if (gone())
        return NOT_INITIALIZED;
    if (kind >= KINDS || !on_requested)
        return CUPTI_INVALID_PARAMETER;
    if (kind == ACTIVITY_CONCURRENT_KERNEL && SETTING(activity_result) != CUPTI_OK)
        return (cupti_result)SETTING(activity_result);
    pthread_mutex_lock(&lock);
    if (!atomic_exchange(&kind_enabled[kind], 1))
        COUNT(kinds_enabled)++;
    if (!worker_runs) {
        worker_stops = 0;
        worker_runs = pthread_create(&worker, NULL, work_off, NULL) == 0;
        if (worker_runs)
            pthread_setname_np(worker, "mock-cupti");
    }
    pthread_mutex_unlock(&lock);
    return CUPTI_OK;
}

cupti_result cuptiActivityDisable(uint32_t kind)
{
    if (gone())
        return NOT_INITIALIZED;
    if (kind < KINDS && atomic_exchange(&kind_enabled[kind], 0))
        COUNT(kinds_enabled)--;
    return CUPTI_OK;
}

cupti_result cuptiActivityFlushAll(uint32_t flag)
{
    if (gone())
        return NOT_INITIALIZED;
    if (in_delivery)
        COUNT(fault_flush_in_delivery)++;
    sleep_ms(SETTING(flush_ms));
    pthread_mutex_lock(&lock);
    if (!on_completed) {
        pthread_mutex_unlock(&lock);
        return INVALID_OPERATION;
    }
    set_aside();
    pthread_mutex_unlock(&lock);
    deliver((int)(flag & 1));
    return CUPTI_OK;
}

cupti_result cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, void **record)
{
    uint8_t *next = *record;
    next = next ? next + record_bytes(*(uint32_t *)*record) : buffer;
    if (next >= buffer + valid)
        return MAX_LIMIT_REACHED;
    *record = next;
    return CUPTI_OK;
}

cupti_result cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped)
{
    (void)context, (void)stream;
    pthread_mutex_lock(&lock);
    *dropped = lost_now;
    lost_now = 0;
    pthread_mutex_unlock(&lock);
    return CUPTI_OK;
}

/* Discards what was not handed over; the buffers go back empty. Correlation ids start anew. */
static void forget_everything(void)
{
    for (uint32_t i = 0; i < KINDS; i++)
        atomic_store(&kind_enabled[i], 0);
    COUNT(kinds_enabled) = 0;
    set_aside();
    while (full) {
        struct buffer *buffer = full;
        full = full->next;
        void *record = NULL;
        while (cuptiActivityGetNextRecord(buffer->bytes, buffer->used, &record) == CUPTI_OK)
            if (*(uint32_t *)record != KIND_OVERHEAD)
                COUNT(discarded)++;
        COUNT(buffers_out)--;
        on_completed(NULL, 0, buffer->bytes, buffer->size, 0);
        free(buffer);
    }
    full_end = &full;
    on_requested = NULL;
    on_completed = NULL;
    atomic_store(&next_correlation, SETTING(first_correlation) ? (unsigned)SETTING(first_correlation) : 1u);
}

#ifndef MOCK_INCOMPLETE
cupti_result cuptiFinalize(void)
{
    if (gone())
        return NOT_INITIALIZED;
    if (!in_exit_callback)
        COUNT(fault_finalize_outside_exit)++;
    sigset_t blocked;
    if (pthread_sigmask(SIG_SETMASK, NULL, &blocked) == 0 && !sigismember(&blocked, SIGTERM))
        COUNT(fault_signals_open)++;
    if (SETTING(finalize_result) != CUPTI_OK)
        return (cupti_result)SETTING(finalize_result);
    install(NULL);
    pthread_mutex_lock(&lock);
    worker_stops = 1;
    int join = worker_runs;
    worker_runs = 0;
    pthread_cond_signal(&work_to_do);
    pthread_mutex_unlock(&lock);
    if (join)
        pthread_join(worker, NULL);
    cuptiUnsubscribe(&callback);
    pthread_mutex_lock(&delivery);
    pthread_mutex_lock(&lock);
    int lost = lost_now != 0;
    (void)lost;
    pthread_mutex_unlock(&lock);
    COUNT(finalizes)++;
    pthread_mutex_unlock(&delivery);
    return CUPTI_OK;
}
#endif
