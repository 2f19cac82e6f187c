/* A libnvidia-ml.so.1 without a GPU: the nvml* functions that the sampler calls, scripted line by line.
 *
 * Lines come from the file named by GPUPROF_MOCK_NVML (read again when it changes) or from mock_nvml_command():
 *
 *   gpus N                                   number of GPUs (default 1)
 *   set GPU KEY VALUE    unset GPU KEY       a value; a key that is not set answers NOT_SUPPORTED
 *   wave GPU KEY BASE AMPLITUDE PERIOD_S     a value that moves, for demonstrations
 *   mig GPU N                                MIG on, with N instances
 *   process GPU PID BYTES|na [graphics]      a process on the GPU (compute unless graphics)
 *   busy GPU PID SM MEM                      its utilization, stamped when asked
 *   sample GPU PID STAMP_US SM MEM           a raw process sample, handed out as it is
 *   clear GPU                                no processes and samples
 *   fail GPU|* FUNCTION|* CODE [AFTER_CALLS] return CODE from then on (CODE 0 ends it)
 *   hang GPU|* FUNCTION|* MS                 take that long; -1 until `release`
 *   release                                  let every hanging call go, and hang no more
 *   lose GPU                                 every call answers GPU_IS_LOST
 *   clock epoch|boot                         which clock sample stamps are of
 *   driver VERSION
 *
 * Values are in NVML's units under short keys, see `defaults`. -DMOCK_OLD_DRIVER leaves out what came after driver
 * 470, -DMOCK_FOREIGN everything but one function.
 */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#ifdef MOCK_FOREIGN
int not_nvml(void) { return 0; }
#else

enum {
    SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15,
    VERSION_MISMATCH = 25,
};
enum { MAX_GPUS = 16, MAX_MIG = 7, MAX_VALUES = 64, MAX_PROCESSES = 256, MAX_RULES = 64, MAX_COUNTS = 2048 };

typedef struct { int gpu; int mig; } device_t;  /* mig: -1 for the GPU itself */
typedef struct { char key[32]; double base, amplitude, period; } value_t;
typedef struct { unsigned pid; unsigned long long memory; int graphics; } process_t;
typedef struct { unsigned pid; unsigned long long stamp; unsigned sm, mem; int now; } sample_t;
typedef struct {
    value_t values[MAX_VALUES];
    process_t processes[MAX_PROCESSES];
    sample_t samples[MAX_PROCESSES];
    int n_values, n_processes, n_samples, mig, lost;
} gpu_t;
typedef struct { int gpu; char function[64]; int code; long after, seen; int delay_ms; } rule_t;
typedef struct { int gpu; char function[64]; long calls; } count_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static gpu_t gpus[MAX_GPUS];
static device_t devices[MAX_GPUS][MAX_MIG + 1];
static rule_t rules[MAX_RULES];
static count_t counts[MAX_COUNTS];
static int n_gpus, n_rules, n_counts, ready, boot_clock;
static long after_loss;
static volatile long released;
static char driver[64] = "580.159.04";
static struct timespec script_time;

static const struct { const char *key; double value; } defaults[] = {
    {"util_gpu", 50}, {"util_mem", 20}, {"samples", 1}, {"mem_total", 150754820096.0}, {"mem_used", 8589934592.0},
    {"mem_reserved", 644939776.0}, {"power", 310000}, {"power_average", 312000}, {"power_instant", 600000},
    {"power_limit", 700000}, {"power_limit_max", 700000}, {"temperature", 61}, {"slowdown", 89}, {"shutdown", 95},
    {"gpu_max", 87}, {"clock_sm", 1980}, {"clock_mem", 3201}, {"clock_sm_max", 1980}, {"clock_mem_max", 3201},
    {"event_reasons", 0}, {"energy", 123456789}, {"pcie_tx", 1500}, {"pcie_rx", 2500}, {"pcie_gen", 5},
    {"pcie_width", 16}, {"gpm", 1}, {"gpm2", 42.5}, {"gpm3", 21.25}, {"gpm5", 11.5}, {"gpm10", 33}, {"gpm20", 100},
    {"gpm21", 200}, {"gpm60", 300}, {"gpm61", 400},
};

/* ---------------------------------------------------------------------------------------------------- the script */

static void put(gpu_t *gpu, const char *key, double base, double amplitude, double period) {
    value_t *v = NULL;
    for (int i = 0; i < gpu->n_values; i++)
        if (!strcmp(gpu->values[i].key, key)) v = &gpu->values[i];
    if (!v && gpu->n_values < MAX_VALUES) {
        v = &gpu->values[gpu->n_values++];
        snprintf(v->key, sizeof v->key, "%s", key);
    }
    if (v) v->base = base, v->amplitude = amplitude, v->period = period;
}

static void reset(void) {
    memset(gpus, 0, sizeof gpus);
    n_gpus = 1, n_rules = 0, n_counts = 0, after_loss = 0, boot_clock = 0;
    released++;
    snprintf(driver, sizeof driver, "580.159.04");
    for (int g = 0; g < MAX_GPUS; g++) {
        for (unsigned i = 0; i < sizeof defaults / sizeof *defaults; i++)
            put(&gpus[g], defaults[i].key, defaults[i].value, 0, 1);
        for (int m = 0; m <= MAX_MIG; m++) devices[g][m] = (device_t){g, m - 1};
    }
    ready = 1;
}

static gpu_t *which(const char *word) {
    int g = atoi(word);
    return &gpus[g < 0 || g >= MAX_GPUS ? 0 : g];
}

static void run_line(const char *line) {
    char w[7][128] = {{0}};
    int n = sscanf(line, "%127s %127s %127s %127s %127s %127s %127s", w[0], w[1], w[2], w[3], w[4], w[5], w[6]);
    if (n < 1 || w[0][0] == '#') return;
    if (!strcmp(w[0], "reset")) reset();
    else if (!strcmp(w[0], "gpus")) n_gpus = atoi(w[1]) > MAX_GPUS ? MAX_GPUS : atoi(w[1]);
    else if (!strcmp(w[0], "set")) put(which(w[1]), w[2], strtod(w[3], NULL), 0, 1);
    else if (!strcmp(w[0], "wave")) put(which(w[1]), w[2], strtod(w[3], NULL), strtod(w[4], NULL), strtod(w[5], NULL));
    else if (!strcmp(w[0], "unset")) put(which(w[1]), w[2], NAN, 0, 1);
    else if (!strcmp(w[0], "mig")) which(w[1])->mig = atoi(w[2]);
    else if (!strcmp(w[0], "clear")) which(w[1])->n_processes = which(w[1])->n_samples = 0;
    else if (!strcmp(w[0], "lose")) which(w[1])->lost = 1;
    else if (!strcmp(w[0], "clock")) boot_clock = !strcmp(w[1], "boot");
    else if (!strcmp(w[0], "driver")) snprintf(driver, sizeof driver, "%.60s", w[1]);
    else if (!strcmp(w[0], "release")) {
        released++;
        for (int i = 0; i < n_rules; i++) rules[i].delay_ms = 0;
    } else if (!strcmp(w[0], "process")) {
        gpu_t *gpu = which(w[1]);
        if (gpu->n_processes < MAX_PROCESSES)
            gpu->processes[gpu->n_processes++] = (process_t){
                strtoul(w[2], NULL, 10), strcmp(w[3], "na") ? strtoull(w[3], NULL, 10) : ~0ULL, w[4][0] == 'g'};
    } else if (!strcmp(w[0], "busy") || !strcmp(w[0], "sample")) {
        gpu_t *gpu = which(w[1]);
        int now = w[0][0] == 'b';
        if (gpu->n_samples < MAX_PROCESSES)
            gpu->samples[gpu->n_samples++] = (sample_t){
                strtoul(w[2], NULL, 10), now ? 0 : strtoull(w[3], NULL, 10), strtoul(w[now ? 3 : 4], NULL, 10),
                strtoul(w[now ? 4 : 5], NULL, 10), now};
    } else if ((!strcmp(w[0], "fail") || !strcmp(w[0], "hang")) && n_rules < MAX_RULES) {
        rule_t *r = NULL;
        int gpu = w[1][0] == '*' ? -1 : atoi(w[1]), fails = w[0][0] == 'f';
        for (int i = 0; i < n_rules; i++)
            if (rules[i].gpu == gpu && !strcmp(rules[i].function, w[2])) r = &rules[i];
        if (!r) r = &rules[n_rules++], memset(r, 0, sizeof *r);
        r->gpu = gpu;
        snprintf(r->function, sizeof r->function, "%.60s", w[2]);
        if (fails) r->code = atoi(w[3]), r->after = n > 4 ? atol(w[4]) : 0, r->seen = 0;
        else r->delay_ms = atoi(w[3]);
    }
}

static void read_script(void) {
    const char *path = getenv("GPUPROF_MOCK_NVML");
    struct stat st;
    if (!ready) reset();
    if (!path || stat(path, &st)) return;
    if (st.st_mtim.tv_sec == script_time.tv_sec && st.st_mtim.tv_nsec == script_time.tv_nsec) return;
    script_time = st.st_mtim;
    FILE *file = fopen(path, "r");
    if (!file) return;
    reset();
    for (char line[512]; fgets(line, sizeof line, file);) run_line(line);
    fclose(file);
}

void mock_nvml_command(const char *line) {
    pthread_mutex_lock(&lock);
    if (!ready) reset();
    run_line(line);
    pthread_mutex_unlock(&lock);
}

/* Calls of `function` (or "*") on a GPU so far; gpu -1: of the library as a whole. */
long mock_nvml_calls(int gpu, const char *function) {
    long sum = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_counts; i++)
        if (counts[i].gpu == gpu && (*function == '*' || !strcmp(counts[i].function, function))) sum += counts[i].calls;
    pthread_mutex_unlock(&lock);
    return sum;
}

/* Calls with a handle whose loss had already been told. */
long mock_nvml_calls_after_loss(void) { return after_loss; }

/* ---------------------------------------------------------------------------------------------- values and rules */

static double now_s(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static unsigned long long stamp_us(void) {
    struct timespec t;
    clock_gettime(boot_clock ? CLOCK_BOOTTIME : CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000ULL + t.tv_nsec / 1000;
}

static double get(int gpu, const char *key) {
    for (int i = 0; i < gpus[gpu].n_values; i++) {
        value_t *v = &gpus[gpu].values[i];
        if (!strcmp(v->key, key))
            return v->amplitude == 0 ? v->base : v->base + v->amplitude * sin(6.283185 * now_s(CLOCK_MONOTONIC) / v->period);
    }
    return NAN;
}

/* Count the call, hang and fail as scripted; `device` may be NULL for calls about the library. */
static int enter(const device_t *device, const char *function) {
    int gpu = device ? device->gpu : -1, code = SUCCESS, delay = 0, i;
    pthread_mutex_lock(&lock);
    read_script();
    for (i = 0; i < n_counts; i++)
        if (counts[i].gpu == gpu && !strcmp(counts[i].function, function)) break;
    if (i == n_counts && n_counts < MAX_COUNTS) {
        counts[n_counts].gpu = gpu, counts[n_counts].calls = 0;
        snprintf(counts[n_counts++].function, sizeof counts[0].function, "%s", function);
    }
    if (i < MAX_COUNTS) counts[i].calls++;
    for (i = 0; i < n_rules; i++) {
        rule_t *r = &rules[i];
        if ((r->gpu != -1 && r->gpu != gpu) || (strcmp(r->function, "*") && strcmp(r->function, function))) continue;
        if (r->delay_ms) delay = r->delay_ms;
        if (r->code && r->seen++ >= r->after) code = r->code;
    }
    if (device && gpus[gpu].lost) {
        if (gpus[gpu].lost++ > 1) after_loss++;
        code = GPU_IS_LOST;
    }
    long generation = released;
    pthread_mutex_unlock(&lock);
    for (long waited = 0; delay && (delay < 0 || waited < delay) && generation == released; waited += 5)
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    return code;
}

#define ENTER(device) do { \
        int code_ = enter((device), __func__); \
        if (code_) return code_; \
    } while (0)

static int number(const device_t *device, const char *key, void *out, int bytes) {
    double value = get(device->gpu, key);
    if (isnan(value) || device->mig >= 0) return NOT_SUPPORTED;
    if (value < 0) memset(out, 0xff, bytes);  /* NVML's "not available" */
    else if (bytes == 4) *(unsigned *)out = (unsigned)value;
    else *(unsigned long long *)out = (unsigned long long)value;
    return SUCCESS;
}

/* ----------------------------------------------------------------------------------------------------- library */

int nvmlInitWithFlags(unsigned flags) { (void)flags; ENTER(NULL); return SUCCESS; }
int nvmlShutdown(void) { ENTER(NULL); return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "mock error"; }
int nvmlSystemGetDriverVersion(char *out, unsigned n) { ENTER(NULL); snprintf(out, n, "%s", driver); return SUCCESS; }
int nvmlSystemGetNVMLVersion(char *out, unsigned n) { ENTER(NULL); snprintf(out, n, "13.%s", driver); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *n) { ENTER(NULL); *n = n_gpus; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **out) {
    if (!ready) reset();
    if (index >= (unsigned)n_gpus) return INVALID_ARGUMENT;
    ENTER(&devices[index][0]);
    *out = &devices[index][0];
    return SUCCESS;
}

/* ------------------------------------------------------------------------------------------------------- facts */

int nvmlDeviceGetUUID(device_t *d, char *out, unsigned n) {
    ENTER(d);
    if (d->mig < 0) snprintf(out, n, "GPU-00000000-0000-0000-0000-%012d", d->gpu);
    else snprintf(out, n, "MIG-00000000-0000-0000-%04d-%012d", d->mig, d->gpu);
    return SUCCESS;
}

int nvmlDeviceGetName(device_t *d, char *out, unsigned n) {
    ENTER(d);
    snprintf(out, n, d->mig < 0 ? "NVIDIA H200" : "NVIDIA H200 MIG 1g.18gb");
    return SUCCESS;
}

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
int nvmlDeviceGetPciInfo_v3(device_t *d, pci_t *out) {
    ENTER(d);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", 0x17 + d->gpu);
    return SUCCESS;
}

int nvmlDeviceGetTemperatureThreshold(device_t *d, int which_one, unsigned *out) {
    ENTER(d);
    const char *key = which_one == 0 ? "shutdown" : which_one == 1 ? "slowdown" : which_one == 3 ? "gpu_max" : "";
    return number(d, key, out, 4);
}

int nvmlDeviceGetMaxClockInfo(device_t *d, int type, unsigned *out) {
    ENTER(d);
    return number(d, type == 1 ? "clock_sm_max" : type == 2 ? "clock_mem_max" : "", out, 4);
}

int nvmlDeviceGetPowerManagementLimitConstraints(device_t *d, unsigned *low, unsigned *high) {
    ENTER(d);
    *low = 0;
    return number(d, "power_limit_max", high, 4);
}

int nvmlDeviceGetMaxPcieLinkGeneration(device_t *d, unsigned *out) { ENTER(d); return number(d, "pcie_gen", out, 4); }
int nvmlDeviceGetMaxPcieLinkWidth(device_t *d, unsigned *out) { ENTER(d); return number(d, "pcie_width", out, 4); }

int nvmlDeviceGetMigMode(device_t *d, unsigned *current, unsigned *pending) {
    ENTER(d);
    *current = *pending = gpus[d->gpu].mig > 0;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(device_t *d, unsigned *out) { ENTER(d); *out = MAX_MIG; return SUCCESS; }

int nvmlDeviceGetMigDeviceHandleByIndex(device_t *d, unsigned index, device_t **out) {
    ENTER(d);
    if (index >= (unsigned)gpus[d->gpu].mig) return NOT_FOUND;
    *out = &devices[d->gpu][index + 1];
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(device_t *d, unsigned *out) { ENTER(d); *out = d->mig; return d->mig < 0 ? NOT_SUPPORTED : 0; }

/* ---------------------------------------------------------------------------------------------------- readings */

typedef struct { unsigned long long total, free, used; } memory_t;
int nvmlDeviceGetMemoryInfo(device_t *d, memory_t *out) {
    ENTER(d);
    unsigned long long reserved = 0;
    number(d, "mem_reserved", &reserved, 8);
    if (number(d, "mem_total", &out->total, 8) || number(d, "mem_used", &out->used, 8)) return NOT_SUPPORTED;
    out->used += reserved;
    return SUCCESS;
}

typedef struct { unsigned gpu, memory; } utilization_t;
int nvmlDeviceGetUtilizationRates(device_t *d, utilization_t *out) {
    ENTER(d);
    if (gpus[d->gpu].mig > 0) return NOT_SUPPORTED;
    return number(d, "util_gpu", &out->gpu, 4) || number(d, "util_mem", &out->memory, 4) ? NOT_SUPPORTED : SUCCESS;
}

typedef union { double d; unsigned u; unsigned long ul; unsigned long long ull; } nvml_value_t;
typedef struct { unsigned long long stamp; nvml_value_t value; } util_sample_t;
int nvmlDeviceGetSamples(device_t *d, int type, unsigned long long seen, int *value_type, unsigned *n, util_sample_t *out) {
    enum { KEPT = 100 };
    const unsigned long long period = 166667;
    ENTER(d);
    double value = get(d->gpu, type == 1 ? "util_gpu" : type == 2 ? "util_mem" : "");
    if (isnan(value) || isnan(get(d->gpu, "samples")) || gpus[d->gpu].mig > 0) return NOT_SUPPORTED;
    unsigned long long last = stamp_us() / period, first = last - KEPT + 1;
    if (seen / period + 1 > first) first = seen / period + 1;
    if (first > last) return NOT_FOUND;
    *value_type = 1;
    if (!out) {
        *n = KEPT;
        return SUCCESS;
    }
    unsigned filled = 0;
    for (unsigned long long k = first; k <= last && filled < *n; k++) {
        out[filled].stamp = k * period;
        out[filled++].value.u = (unsigned)value;
    }
    *n = filled;
    return SUCCESS;
}

typedef struct {
    unsigned id, scope;
    long long timestamp, latency;
    int type, result;
    nvml_value_t value;
} field_value_t;
int nvmlDeviceGetFieldValues(device_t *d, int n, field_value_t *out) {
    ENTER(d);
    for (int i = 0; i < n; i++) {
        out[i].type = 1;
        out[i].result = number(d, out[i].id == 185 ? "power_average" : out[i].id == 186 ? "power_instant" : "", &out[i].value.u, 4);
    }
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(device_t *d, unsigned *out) { ENTER(d); return number(d, "power", out, 4); }
int nvmlDeviceGetEnforcedPowerLimit(device_t *d, unsigned *out) { ENTER(d); return number(d, "power_limit", out, 4); }
int nvmlDeviceGetTemperature(device_t *d, int sensor, unsigned *out) { (void)sensor; ENTER(d); return number(d, "temperature", out, 4); }

int nvmlDeviceGetClockInfo(device_t *d, int type, unsigned *out) {
    ENTER(d);
    return number(d, type == 1 ? "clock_sm" : type == 2 ? "clock_mem" : "", out, 4);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(device_t *d, unsigned long long *out) { ENTER(d); return number(d, "event_reasons", out, 8); }
int nvmlDeviceGetTotalEnergyConsumption(device_t *d, unsigned long long *out) { ENTER(d); return number(d, "energy", out, 8); }

int nvmlDeviceGetPcieThroughput(device_t *d, int direction, unsigned *out) {
    ENTER(d);
    return number(d, direction == 0 ? "pcie_tx" : "pcie_rx", out, 4);
}

/* --------------------------------------------------------------------------------------------------- processes */

typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } process_info_t;
static int list(device_t *d, int graphics, unsigned *n, process_info_t *out) {
    unsigned found = 0, room = *n;
    for (int i = 0; i < gpus[d->gpu].n_processes; i++) {
        process_t *p = &gpus[d->gpu].processes[i];
        if (p->graphics != graphics) continue;
        if (out && found < room) out[found] = (process_info_t){p->pid, p->memory, ~0u, ~0u};
        found++;
    }
    *n = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v2(device_t *d, unsigned *n, process_info_t *out) { ENTER(d); return list(d, 0, n, out); }
int nvmlDeviceGetGraphicsRunningProcesses_v2(device_t *d, unsigned *n, process_info_t *out) { ENTER(d); return list(d, 1, n, out); }

typedef struct { unsigned pid; unsigned long long stamp; unsigned sm, mem, enc, dec; } process_sample_t;
int nvmlDeviceGetProcessUtilization(device_t *d, process_sample_t *out, unsigned *n, unsigned long long seen) {
    (void)seen;
    ENTER(d);
    gpu_t *gpu = &gpus[d->gpu];
    if (gpu->mig > 0) return NOT_SUPPORTED;
    if (!gpu->n_samples) return NOT_FOUND;
    if (!out || *n < (unsigned)gpu->n_samples) {
        *n = gpu->n_samples;
        return INSUFFICIENT_SIZE;
    }
    *n = gpu->n_samples;
    for (int i = 0; i < gpu->n_samples; i++) {
        sample_t *s = &gpu->samples[i];
        out[i] = (process_sample_t){s->pid, s->now ? stamp_us() : s->stamp, s->sm, s->mem, 0, 0};
    }
    return SUCCESS;
}

/* ------------------------------------------------------------------------------------- what came after driver 470 */

#ifndef MOCK_OLD_DRIVER
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
int nvmlDeviceGetMemoryInfo_v2(device_t *d, memory_v2_t *out) {
    ENTER(d);
    if (out->version != 0x02000028) return VERSION_MISMATCH;
    double total = get(d->gpu, "mem_total"), used = get(d->gpu, "mem_used"), reserved = get(d->gpu, "mem_reserved");
    if (isnan(total)) return NOT_SUPPORTED;
    out->total = (unsigned long long)(d->mig < 0 ? total : total / MAX_MIG);
    out->used = used < 0 || isnan(used) ? ~0ULL : (unsigned long long)used;
    out->reserved = reserved < 0 || isnan(reserved) ? ~0ULL : (unsigned long long)reserved;
    out->free = 0;
    return SUCCESS;
}

typedef struct { unsigned version; int sensor, temperature; } temperature_v1_t;
int nvmlDeviceGetTemperatureV(device_t *d, temperature_v1_t *out) {
    ENTER(d);
    return number(d, "temperature", &out->temperature, 4);
}

int nvmlDeviceGetCurrentClocksEventReasons(device_t *d, unsigned long long *out) { ENTER(d); return number(d, "event_reasons", out, 8); }
int nvmlDeviceGetComputeRunningProcesses_v3(device_t *d, unsigned *n, process_info_t *out) { ENTER(d); return list(d, 0, n, out); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(device_t *d, unsigned *n, process_info_t *out) { ENTER(d); return list(d, 1, n, out); }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(device_t *d, unsigned *n, process_info_t *out) { (void)out; ENTER(d); *n = 0; return SUCCESS; }

typedef struct { unsigned version, supported; } gpm_support_t;
int nvmlGpmQueryDeviceSupport(device_t *d, gpm_support_t *out) {
    ENTER(d);
    out->supported = !isnan(get(d->gpu, "gpm"));
    return SUCCESS;
}

typedef struct { int gpu; int filled; } gpm_sample_t;
int nvmlGpmSampleAlloc(gpm_sample_t **out) { ENTER(NULL); *out = calloc(1, sizeof **out); return SUCCESS; }
int nvmlGpmSampleFree(gpm_sample_t *sample) { ENTER(NULL); free(sample); return SUCCESS; }
int nvmlGpmSampleGet(device_t *d, gpm_sample_t *sample) { ENTER(d); *sample = (gpm_sample_t){d->gpu, 1}; return SUCCESS; }
int nvmlGpmMigSampleGet(device_t *d, unsigned instance, gpm_sample_t *sample) { (void)instance; ENTER(d); *sample = (gpm_sample_t){d->gpu, 1}; return SUCCESS; }

typedef struct { unsigned id; int result; double value; const char *names[3]; } gpm_metric_t;
typedef struct { unsigned version, n; gpm_sample_t *first, *second; gpm_metric_t metrics[]; } gpm_request_t;
int nvmlGpmMetricsGet(gpm_request_t *request) {
    gpm_sample_t *second = request->second;
    ENTER(&devices[second->gpu][0]);
    if (request->version != 1) return VERSION_MISMATCH;
    if (!request->first->filled || !second->filled) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < request->n; i++) {
        char key[32];
        snprintf(key, sizeof key, "gpm%u", request->metrics[i].id);
        double value = get(second->gpu, key);
        request->metrics[i].result = isnan(value) ? NOT_SUPPORTED : SUCCESS;
        request->metrics[i].value = value <= -1 ? NAN : value;
    }
    return SUCCESS;
}
#endif
#endif
