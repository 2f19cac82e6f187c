/* Finds and opens the libcupti that belongs to the process's own CUDA toolkit (cupti_abi.h). */
#define _GNU_SOURCE
#include "cupti_abi.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const sonames[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so.11.8", "libcupti.so"};
#define SONAMES (sizeof sonames / sizeof *sonames)

/* Where CUPTI lies, seen from the directory of the toolkit's libcudart, libnvrtc or libcublas: beside it (CUDA 13 wheels, system
 * installations), in the wheel of its own (CUDA 12 and 11), or in extras. */
static const char *const relative[] = {"", "/../../cuda_cupti/lib", "/../extras/CUPTI/lib64", "/../../../extras/CUPTI/lib64"};

struct toolkit {
    char directory[PATH_MAX];
};

static int note_toolkit(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    struct toolkit *toolkit = data;
    const char *slash = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    if (!slash)
        return 0;
    static const char *const marks[] = {"/libcudart.so", "/libnvrtc.so", "/libcublas.so"};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (strncmp(slash, marks[i], strlen(marks[i])) == 0) {
            size_t length = (size_t)(slash - info->dlpi_name);
            if (length >= sizeof toolkit->directory)
                return 0;
            memcpy(toolkit->directory, info->dlpi_name, length);
            toolkit->directory[length] = 0;
            return 1;
        }
    return 0;
}

static void *try_directory(const char *directory, const char *tail)
{
    char path[PATH_MAX];
    for (size_t i = 0; i < SONAMES; i++) {
        int n = snprintf(path, sizeof path, "%s%s/%s", directory, tail, sonames[i]);
        if (n <= 0 || (size_t)n >= sizeof path)
            continue;
        void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (handle)
            return handle;
    }
    return NULL;
}

static void *find(void)
{
    void *handle = NULL;
    const char *asked = getenv("GPUPROF_CUPTI");
    if (asked && *asked)
        return dlopen(asked, RTLD_NOW | RTLD_LOCAL);

    for (size_t i = 0; i < SONAMES && !handle; i++) /* already loaded: torch links it */
        handle = dlopen(sonames[i], RTLD_NOW | RTLD_NOLOAD);

    struct toolkit toolkit = {.directory = ""};
    if (!handle)
        dl_iterate_phdr(note_toolkit, &toolkit);
    for (size_t i = 0; i < sizeof relative / sizeof *relative && !handle && toolkit.directory[0]; i++)
        handle = try_directory(toolkit.directory, relative[i]);

    const char *home = getenv("CUDA_HOME");
    if (!handle && home && *home) {
        handle = try_directory(home, "/extras/CUPTI/lib64");
        if (!handle)
            handle = try_directory(home, "/lib64");
    }
    static const char *const usual[] = {"/usr/local/cuda/extras/CUPTI/lib64", "/usr/local/cuda/lib64",
                                        "/usr/local/cuda/targets/x86_64-linux/lib"};
    for (size_t i = 0; i < sizeof usual / sizeof *usual && !handle; i++)
        handle = try_directory(usual[i], "");
    for (size_t i = 0; i < SONAMES && !handle; i++) /* the loader's own search path */
        handle = dlopen(sonames[i], RTLD_NOW | RTLD_LOCAL);
    return handle;
}

int cupti_open(struct cupti_api *api, char *path, size_t path_size, char *problem, size_t problem_size)
{
    void *handle = find();
    const char *asked = getenv("GPUPROF_CUPTI");
    if (!handle && asked && *asked) {
        const char *why = dlerror();
        snprintf(problem, problem_size, "GPUPROF_CUPTI cannot be opened: %s", why ? why : asked);
        return -1;
    }
    if (!handle) {
        snprintf(problem, problem_size, "libcupti not found beside the process's CUDA toolkit nor in /usr/local/cuda");
        return -1;
    }
    memset(api, 0, sizeof *api);
    const char *missing = NULL;
#define LOAD(name, arguments)                                                                                          \
    *(void **)&api->name = dlsym(handle, #name);                                                                       \
    if (!api->name)                                                                                                    \
        missing = #name;
    CUPTI_FUNCTIONS(LOAD)
#undef LOAD
#define LOAD(name, arguments) *(void **)&api->name = dlsym(handle, #name);
    CUPTI_OPTIONAL(LOAD)
    CUPTI_SHARED(LOAD)
#undef LOAD
    struct link_map *map = NULL;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name)
        snprintf(path, path_size, "%s", map->l_name);
    if (missing) {
        snprintf(problem, problem_size, "%s has no %s: it is too old", path[0] ? path : "libcupti", missing);
        return -1;
    }
    return 0;
}
