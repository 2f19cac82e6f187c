/* A CUDA program without CUDA: does on the mock driver what a line on its standard input says, and answers each with one line.
 *
 *   init                               cuInit; answers which of the descriptors 0..2 it left closed that are open now
 *   init_closed                        the same with 0..2 closed meanwhile
 *   launch THREADS PATH HOW NAME N     each thread makes N calls through call path a or b; HOW: kernel, ex, graph (3 nodes), copy, set, query, bad, free,
 *                                      sync[STREAM], ctxsync, await EVENT as await5, and record, an event in a stream: rec5:33, flags5:33; with
 *                                      the per-thread default stream: ptsz5:0, fptsz5:0
 *   push TEXT, pop, ranges TEXT N ...  NVTX ranges of the main thread (mock_nvtx.c); `launch 0 ...` launches on it
 *   long NS                            how long the kernels made from now on take (default 500)
 *   wait NS                            how long synchronizes and blocking copies take from now on (default 0)
 *   contexts MASK NS                   which devices' primary contexts are active, and how long the driver takes to say so
 *   asked?                             how often it was asked for that
 *   pace US                            how long the threads of `spin` sleep after each launch (default 1000)
 *   spin THREADS / stop                launches in the background / how many they were
 *   names N                            N launches, each of a kernel with a name of its own
 *   rename OLD NEW                     the text behind a name's pointer changes, as when a module is unloaded and another comes
 *   set KEY VALUE                      scripts the mock CUPTI
 *   other..., ...                      another user of CUPTI (harness_other.c)
 *   graphs N, ...                      makes graphs (harness_graphs.c)
 *   fork N                             N children, one after another, that launch and exit(); answers how many did not end well
 *   hold_child / child? / kill_child   a child that only waits / its pid / ends it
 *   exec                               becomes a new image of itself
 *   close FROM                         closes every descriptor from FROM on
 *   signals / signals?                 counts SIGUSR1 / answers the count and the names of the threads that took it
 *   exit_on_signal                     SIGTERM's handler calls exit(0)
 *   exit N | _exit N | raise N
 *
 * It defines gpuprof_launch itself, which takes the place of the library's: HARNESS_LOG is a file of the calls (see struct row).
 */
#define _GNU_SOURCE
#include "mock_gpu.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROWS (1u << 20)
#define FUNCTIONS 512

struct row {
    uint32_t correlation, epoch;
    uint64_t enter_ns;
    uint32_t weight, tid;
    char path, kernel[23];
};

struct log {
    _Atomic uint64_t count;
    uint64_t pad[5];
    struct row rows[ROWS];
};

static struct log *launch_log;
static __thread char current_path;
static __thread const char *current_kernel;
static struct mock_function functions[FUNCTIONS];
static char function_names[FUNCTIONS][128];
static int function_count;
static uint64_t kernel_ns = 500;

/* ---- the probe ------------------------------------------------------------------------------------------------------------ */

void gpuprof_launch(uint64_t correlation, uint64_t enter_ns, uint64_t attach, uint64_t weight);
void gpuprof_launch(uint64_t correlation, uint64_t enter_ns, uint64_t attach, uint64_t weight)
{
    if (!launch_log)
        return;
    uint64_t i = atomic_fetch_add(&launch_log->count, 1);
    if (i >= ROWS)
        return;
    struct row *row = &launch_log->rows[i];
    row->correlation = (uint32_t)correlation;
    row->epoch = (uint32_t)attach;
    row->enter_ns = enter_ns;
    row->weight = (uint32_t)weight;
    row->tid = (uint32_t)gettid();
    row->path = current_path;
    if (current_kernel)
        strncpy(row->kernel, current_kernel, sizeof row->kernel - 1);
}

static void open_log(void)
{
    const char *path = getenv("HARNESS_LOG");
    int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd < 0 || ftruncate(fd, sizeof *launch_log) != 0)
        return;
    void *mapped = mmap(NULL, sizeof *launch_log, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    launch_log = mapped == MAP_FAILED ? NULL : mapped;
    close(fd);
}

/* ---- launches ---------------------------------------------------------------------------------------------------------------- */

static struct mock_function *function_named(const char *name)
{
    for (int i = 0; i < function_count; i++)
        if (strcmp(functions[i].name, name) == 0 && functions[i].ns == kernel_ns)
            return &functions[i];
    if (function_count == FUNCTIONS)
        abort();
    strncpy(function_names[function_count], name, sizeof *function_names - 1);
    functions[function_count] = (struct mock_function){.name = function_names[function_count], .ns = kernel_ns};
    return &functions[function_count++];
}

static void record_event(const char *how)
{
    void *event = (void *)strtol(how + strcspn(how, "-0123456789"), NULL, 10);
    void *stream = (void *)strtol(strchr(how, ':') + 1, NULL, 10);
    if (strncmp(how, "rec", 3) == 0)
        cuEventRecord(event, stream);
    else if (strncmp(how, "flags", 5) == 0)
        cuEventRecordWithFlags(event, stream, 0);
    else if (strncmp(how, "ptsz", 4) == 0)
        cuEventRecord_ptsz(event, stream);
    else
        cuEventRecordWithFlags_ptsz(event, stream, 0);
}

static void do_call(const char *how, struct mock_function *f)
{
    struct mock_graph graph = {.function = f, .nodes = 3, .id = 9};
    if (strcmp(how, "kernel") == 0)
        cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    else if (strcmp(how, "ex") == 0)
        cuLaunchKernelEx(NULL, f, NULL, NULL);
    else if (strcmp(how, "graph") == 0)
        cuGraphLaunch(&graph, NULL);
    else if (strcmp(how, "copy") == 0)
        cuMemcpyHtoD_v2(0, NULL, 4096);
    else if (strcmp(how, "set") == 0)
        cuMemsetD8_v2(0, 0, 8192);
    else if (strcmp(how, "bad") == 0)
        cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    else if (strcmp(how, "query") == 0)
        cuStreamQuery(NULL);
    else if (strcmp(how, "free") == 0)
        cuMemFree_v2(0);
    else if (strcmp(how, "ctxsync") == 0)
        cuCtxSynchronize();
    else if (strncmp(how, "await", 5) == 0)
        cuEventSynchronize((void *)strtol(how + 5, NULL, 10));
    else if (strchr(how, ':'))
        record_event(how);
    else
        cuStreamSynchronize((void *)strtol(how + strlen("sync"), NULL, 10)); /* -1: a handle of nothing */
}

__attribute__((noinline)) static void path_a(const char *how, struct mock_function *f)
{
    current_path = 'a';
    do_call(how, f);
}

__attribute__((noinline)) static void path_b(const char *how, struct mock_function *f)
{
    current_path = 'b';
    do_call(how, f);
}

struct job {
    pthread_t thread;
    char path, how[16];
    struct mock_function *f;
    long count;
};

static void *run_job(void *argument)
{
    struct job *job = argument;
    current_kernel = job->f->name;
    for (long i = 0; i < job->count; i++)
        (job->path == 'a' ? path_a : path_b)(job->how, job->f);
    return NULL;
}

static void launch(int threads, char path, const char *how, const char *name, long count)
{
    if (threads == 0) { /* here */
        struct job job = {.path = path, .f = function_named(name), .count = count};
        strncpy(job.how, how, sizeof job.how - 1);
        run_job(&job);
        return;
    }
    struct job *jobs = calloc((size_t)threads, sizeof *jobs);
    for (int i = 0; i < threads; i++) {
        jobs[i] = (struct job){.path = path, .f = function_named(name), .count = count};
        strncpy(jobs[i].how, how, sizeof jobs[i].how - 1);
        pthread_create(&jobs[i].thread, NULL, run_job, &jobs[i]);
    }
    for (int i = 0; i < threads; i++)
        pthread_join(jobs[i].thread, NULL);
    free(jobs);
}

static void launch_names(long count)
{
    char (*texts)[64] = calloc((size_t)count, sizeof *texts);
    struct mock_function f = {.ns = 100};
    current_path = 'n';
    for (long i = 0; i < count; i++) {
        snprintf(texts[i], sizeof *texts, "kernel_with_a_name_of_its_own_%ld", i);
        f.name = current_kernel = texts[i];
        do_call("kernel", &f);
    }
    current_kernel = NULL; /* the texts stay: records point at them */
}

static struct job spinners[320];
static int spinner_count;
static atomic_int spinning;
static atomic_long spun;
static atomic_uint pace_us = 1000;

static void *spin(void *argument)
{
    struct job *job = argument;
    char name[16];
    snprintf(name, sizeof name, "app-%d", (int)(job - spinners));
    prctl(PR_SET_NAME, name);
    current_kernel = job->f->name;
    while (atomic_load(&spinning)) {
        path_b("kernel", job->f);
        atomic_fetch_add(&spun, 1);
        usleep(atomic_load(&pace_us));
    }
    return NULL;
}

/* ---- the rest ---------------------------------------------------------------------------------------------------------------- */

static int set(const char *key, long long value)
{
    int (*set_it)(const char *, long long) = NULL;
    const char *path = getenv("GPUPROF_CUPTI");
    void *mock = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (mock)
        *(void **)&set_it = dlsym(mock, "mock_cupti_set");
    return set_it ? set_it(key, value) : -2;
}

static int fork_children(int count)
{
    int bad = 0;
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(10); /* a deadlock ends by SIGALRM */
            launch(2, 'c', "kernel", "child", 3);
            exit(0);
        }
        int status = -1;
        waitpid(child, &status, 0);
        bad += status != 0;
    }
    return bad;
}

static pid_t held;

static pid_t hold_child(void)
{
    held = fork();
    if (held == 0) {
        alarm(30);
        for (;;)
            pause();
    }
    return held;
}

static int kill_child(void)
{
    kill(held, SIGKILL);
    return waitpid(held, NULL, 0) == held;
}

static atomic_int signals_taken;
static char signal_threads[4096];
static atomic_int signal_threads_used;

static void on_signal(int number)
{
    (void)number;
    char name[17] = "";
    prctl(PR_GET_NAME, name);
    size_t length = strlen(name);
    name[length] = ' ';
    int at = atomic_fetch_add(&signal_threads_used, (int)length + 1);
    if (at + (int)length + 1 < (int)sizeof signal_threads)
        memcpy(signal_threads + at, name, length + 1);
    atomic_fetch_add(&signals_taken, 1);
}

static void exit_on_signal(int number)
{
    (void)number;
    exit(0); /* not allowed, and done everywhere */
}

static int init(int closed)
{
    int kept[3] = {-1, -1, -1}, open_now = 0;
    for (int i = 0; closed && i < 3; i++) {
        kept[i] = fcntl(i, F_DUPFD_CLOEXEC, 200);
        close(i);
    }
    cuInit(0);
    for (int i = 0; closed && i < 3; i++) {
        open_now += fcntl(i, F_GETFD) >= 0;
        dup2(kept[i], i);
        close(kept[i]);
    }
    return open_now;
}

static void answer(const char *format, long value)
{
    printf("ok ");
    printf(format, value);
    printf("\n");
    fflush(stdout);
}

static int matches(const char *line, const char *word)
{
    size_t n = strlen(word);
    return strncmp(line, word, n) == 0 && (line[n] == 0 || line[n] == ' ');
}

static void obey(char *line, char **argv)
{
    char text[2][128] = {"", ""}, path = 'a';
    int number = 0;
    long count = 0;
    long long value = 0;
    if (mock_nvtx_obey(line, &count) || other_obey(line, &count) || graphs_obey(line, &count))
        answer("%ld", count);
    else if (matches(line, "init"))
        answer("%ld", init(0));
    else if (matches(line, "init_closed"))
        answer("%ld", init(1));
    else if (sscanf(line, "launch %d %c %127s %127s %ld", &number, &path, text[0], text[1], &count) == 5) {
        launch(number, path, text[0], text[1], count);
        answer("%ld", number * count);
    } else if (sscanf(line, "long %lld", &value) == 1) {
        kernel_ns = (uint64_t)value;
        answer("%ld", (long)value);
    } else if (sscanf(line, "wait %lld", &value) == 1) {
        mock_cuda_wait((uint64_t)value);
        answer("%ld", (long)value);
    } else if (sscanf(line, "contexts %ld %lld", &count, &value) == 2) {
        mock_cuda_contexts((uint64_t)count, (uint64_t)value);
        answer("%ld", count);
    } else if (matches(line, "asked?")) {
        answer("%ld", (long)mock_cuda_asked());
    } else if (sscanf(line, "pace %d", &number) == 1) {
        atomic_store(&pace_us, (unsigned)number);
        answer("%ld", number);
    } else if (sscanf(line, "spin %d", &spinner_count) == 1) {
        atomic_store(&spun, 0);
        atomic_store(&spinning, 1);
        for (int i = 0; i < spinner_count; i++) {
            spinners[i].f = function_named("spin");
            pthread_create(&spinners[i].thread, NULL, spin, &spinners[i]);
        }
        answer("%ld", spinner_count);
    } else if (matches(line, "stop")) {
        atomic_store(&spinning, 0);
        for (int i = 0; i < spinner_count; i++)
            pthread_join(spinners[i].thread, NULL);
        answer("%ld", atomic_load(&spun));
    } else if (sscanf(line, "names %ld", &count) == 1) {
        launch_names(count);
        answer("%ld", count);
    } else if (sscanf(line, "rename %127s %127s", text[0], text[1]) == 2) {
        struct mock_function *f = function_named(text[0]);
        strcpy(function_names[f - functions], text[1]);
        answer("%ld", 0);
    } else if (sscanf(line, "set %127s %lld", text[0], &value) == 2)
        answer("%ld", set(text[0], value));
    else if (sscanf(line, "fork %d", &number) == 1)
        answer("%ld", fork_children(number));
    else if (matches(line, "hold_child"))
        answer("%ld", hold_child());
    else if (matches(line, "child?"))
        answer("%ld", held);
    else if (matches(line, "kill_child"))
        answer("%ld", kill_child());
    else if (matches(line, "exec")) {
        execv("/proc/self/exe", argv);
        answer("%ld", -1);
    } else if (sscanf(line, "close %d", &number) == 1)
        answer("%ld", close_range((unsigned)number, ~0u, 0));
    else if (matches(line, "exit_on_signal")) {
        signal(SIGTERM, exit_on_signal);
        answer("%ld", 0);
    } else if (matches(line, "signals")) {
        signal(SIGUSR1, on_signal);
        answer("%ld", 0);
    } else if (matches(line, "signals?")) {
        printf("ok %d %s\n", atomic_load(&signals_taken), signal_threads);
        fflush(stdout);
    } else if (sscanf(line, "exit %d", &number) == 1)
        exit(number);
    else if (sscanf(line, "_exit %d", &number) == 1)
        _exit(number);
    else if (sscanf(line, "raise %d", &number) == 1)
        raise(number);
    else
        answer("what? %ld", 0);
}

int main(int argc, char **argv)
{
    (void)argc;
    char line[512];
    setvbuf(stdin, NULL, _IONBF, 0); /* an exec must not take lines along that the new image shall read */
    open_log();
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        obey(line, argv);
    }
    return 0;
}
