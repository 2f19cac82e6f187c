/* What the process is, and everything that speaks against attaching to it (attach.h). */
#define _GNU_SOURCE
#include "attach.h"

#include <ctype.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define RUN_HINT "start it with: gpuprof-tui run -- CMD"
#define SUDO_HINT "sudo" /* the command puts its own path in */
#define RTLD_NOW_LOCAL 2
#define RTLD_INTERNAL ((int)0x80000000u) /* what __libc_dlopen_mode wants to be told */
#define MAX_GROUPS 1024

/* ---- /proc/PID/status ---------------------------------------------------------------------------------------------------------- */

/* What comes after "key:" in a status file, in `value`; 0 when there is no such line. */
static int status_field(pid_t pid, const char *key, char *value, size_t size)
{
    char path[64], line[8192];
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file)) {
        size_t length = strlen(key);
        if (strncmp(line, key, length) != 0 || line[length] != ':')
            continue;
        const char *at = line + length + 1;
        while (isspace((unsigned char)*at))
            at++;
        snprintf(value, size, "%s", at);
        value[strcspn(value, "\n")] = 0;
        found = 1;
    }
    if (file)
        fclose(file);
    return found;
}

static long status_number(pid_t pid, const char *key, long otherwise)
{
    char value[64];
    return status_field(pid, key, value, sizeof value) ? strtol(value, NULL, 10) : otherwise;
}

static const char *name_of_process(pid_t pid, char name[64])
{
    if (!status_field(pid, "Name", name, 64))
        snprintf(name, 64, "?");
    return name;
}

static const char *name_of_user(uid_t uid, char name[64])
{
    const struct passwd *entry = getpwuid(uid);
    if (entry)
        snprintf(name, 64, "%s", entry->pw_name);
    else
        snprintf(name, 64, "user %u", uid);
    return name;
}

/* ---- refusals -------------------------------------------------------------------------------------------------------------------- */

static void refuse_by_state(pid_t pid)
{
    char state[64], name[64], memory[64];
    if (!status_field(pid, "State", state, sizeof state))
        refuse("gone", "", "there is no process %d", (int)pid);
    if (*state == 'Z' || *state == 'X')
        refuse("zombie", "", "process %d has ended, and only waits for its parent to notice", (int)pid);
    if (!status_field(pid, "VmSize", memory, sizeof memory))
        refuse("kernel-thread", "", "process %d is a thread of the kernel", (int)pid);
    long tracer = status_number(pid, "TracerPid", 0);
    if (tracer > 0)
        refuse("traced", "let the debugger go first", "another program debugs it: %s (pid %ld)", name_of_process((pid_t)tracer, name), tracer);
    if (*state == 'T')
        refuse("stopped", "let it go on first: fg, or kill -CONT", "it is stopped");
}

static int has_capability(int number)
{
    char value[64];
    return status_field(getpid(), "CapEff", value, sizeof value) && (strtoull(value, NULL, 16) >> number & 1);
}

void process_refuse_ptrace(pid_t pid, int error)
{
    enum { CAPABILITY_PTRACE = 19 };
    int scope = 0, privileged = has_capability(CAPABILITY_PTRACE);
    char name[64];
    struct stat info;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d", (int)pid);
    FILE *yama = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
    if (yama && fscanf(yama, "%d", &scope) != 1)
        scope = 0;
    if (yama)
        fclose(yama);
    if (error == ESRCH || stat(path, &info) < 0)
        refuse("gone", "", "process %d has ended meanwhile", (int)pid);
    refuse_by_state(pid);
    if (scope >= 3)
        refuse("scope", RUN_HINT, "this kernel lets nobody attach to a process (kernel.yama.ptrace_scope is 3)");
    uid_t uid = (uid_t)status_number(pid, "Uid", (long)info.st_uid);
    if (!privileged && uid != geteuid())
        refuse("user", SUDO_HINT, "it belongs to %s", name_of_user(uid, name));
    if (!privileged && scope == 2)
        refuse("scope", SUDO_HINT, "this kernel lets only root attach to a process (kernel.yama.ptrace_scope is 2)");
    if (!privileged && scope == 1)
        refuse("scope", SUDO_HINT, "this kernel lets a user attach to child processes only (kernel.yama.ptrace_scope is 1)");
    if (!privileged)
        refuse("permission", SUDO_HINT, "it does not let other processes of its user look at it");
    refuse("permission", RUN_HINT, "the kernel refuses it even to root: %s (a security module, a container without CAP_SYS_PTRACE?)",
           strerror(error));
}

static void refuse_by_program(pid_t pid)
{
    char path[64];
    Elf64_Ehdr header = {.e_ident = {0}};
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t got = fd >= 0 ? read(fd, &header, sizeof header) : -1;
    if (fd >= 0)
        close(fd);
    if (got < 20 || memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
        return; /* what is mapped decides */
    if (header.e_ident[EI_CLASS] != ELFCLASS64)
        refuse("arch", "", "it is a 32-bit program");
    if (header.e_machine != EM_X86_64)
        refuse("arch", "", "it is not a program for x86-64");
}

static void refuse_by_libraries(const struct process *process, const char *library, int any)
{
    const struct image *image = &process->image;
    const char *slash = strrchr(library, '/');
    char in_memory[MODULE_NAME];
    snprintf(in_memory, sizeof in_memory, "memfd:%.50s", slash ? slash + 1 : library);
    for (int i = 0; i < image->count; i++)
        if (!any && (strcmp(image->modules[i].name, in_memory) == 0 || strcmp(image->modules[i].name, in_memory + strlen("memfd:")) == 0))
            refuse("loaded", "", "it has the library already");
    if (image_find(image, "ld-musl"))
        refuse("musl", "", "it uses musl, and CUDA and this library need glibc");
    static const char *const tools[] = {"libasan", "libtsan", "libmsan", "liblsan", "libclang_rt.", "vgpreload_", "vgcore_"};
    for (size_t i = 0; i < sizeof tools / sizeof *tools; i++)
        if (image_find(image, tools[i]))
            refuse("sanitizer", RUN_HINT, "it runs under a checker (%s) that must see every thread begin", image_find(image, tools[i])->name);
    if (!image_find(image, "libc.so.6") && !image_find(image, "libc-2."))
        refuse("static", "", "it has no C library to load another one with (a static program)");
    if (!any && !image_find(image, "libcuda.so"))
        refuse("no-cuda", "attach when it has begun to, or " RUN_HINT, "it does not use CUDA (yet)");
}

static void refuse_by_protection(const struct process *process)
{
    char features[128];
    if (process->seccomp == 1)
        refuse("seccomp", "", "it runs in seccomp's strict mode");
    if (status_field(process->pid, "x86_Thread_features", features, sizeof features) && strstr(features, "shstk"))
        refuse("shadow-stack", RUN_HINT, "it runs with a shadow stack, where no call can be inserted");
}

/* ---- opening ------------------------------------------------------------------------------------------------------------------------- */

static uint64_t function(const struct process *process, const char *name)
{
    static const char *const libraries[] = {"libc.so.6", "libc-2.", "libpthread.so.0", "libpthread-2.", "libdl.so.2", "libdl-2."};
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) {
        const struct module *module = image_find(&process->image, libraries[i]);
        uint64_t address = module ? image_symbol(process->mem, module, name).start : 0;
        if (address)
            return address;
    }
    return 0;
}

static void find_functions(struct process *process)
{
    process->call.dlopen_flags = RTLD_NOW_LOCAL;
    process->call.dlopen = function(process, "dlopen");
    process->call.dlsym = function(process, "dlsym");
    process->call.dlerror = function(process, "dlerror");
    if (!process->call.dlopen || !process->call.dlsym) { /* glibc before 2.34, in a process without libdl */
        process->call.dlopen = function(process, "__libc_dlopen_mode");
        process->call.dlsym = function(process, "__libc_dlsym");
        process->call.dlerror = 0;
        process->call.dlopen_flags |= RTLD_INTERNAL;
    }
    process->call.pthread_create = function(process, "pthread_create");
    process->call.pthread_detach = function(process, "pthread_detach");
    process->call.munmap = function(process, "munmap");
    const char *missing = !process->call.dlopen || !process->call.dlsym ? "dlopen"
                          : !process->call.pthread_create             ? "pthread_create"
                          : !process->call.pthread_detach             ? "pthread_detach"
                          : !process->call.munmap                     ? "munmap"
                                                                      : NULL;
    if (missing)
        refuse("libc", RUN_HINT, "no %s is to be found in its C library", missing);
}

void process_open(struct process *process, pid_t pid, const char *library, int any)
{
    char path[64];
    refuse_by_state(pid);
    process->pid = (pid_t)status_number(pid, "Tgid", pid);
    process->seccomp = (int)status_number(process->pid, "Seccomp", 0);
    process->uid = (uid_t)status_number(process->pid, "Uid", 0);
    snprintf(path, sizeof path, "/proc/%d/mem", (int)process->pid);
    process->mem = open(path, O_RDWR | O_CLOEXEC);
    if (process->mem < 0)
        process_refuse_ptrace(process->pid, errno);
    refuse_by_program(process->pid);
    int error = image_read(&process->image, process->pid);
    if (error < 0)
        process_refuse_ptrace(process->pid, -error);
    refuse_by_libraries(process, library, any);
    refuse_by_protection(process);
    find_functions(process);
}

/* ---- what it sees --------------------------------------------------------------------------------------------------------------- */

static int same_link_target(pid_t pid, const char *what)
{
    char theirs[64], ours[64];
    struct stat a, b;
    snprintf(theirs, sizeof theirs, "/proc/%d/%s", (int)pid, what);
    snprintf(ours, sizeof ours, "/proc/self/%s", what);
    return stat(theirs, &a) == 0 && stat(ours, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* In a child: with the ids of the process, is the file to be read? */
static int readable_as(pid_t pid, const char *path)
{
    char text[8192];
    gid_t groups[MAX_GROUPS];
    size_t count = 0;
    uid_t uid = (uid_t)status_number(pid, "Uid", 0);
    gid_t gid = (gid_t)status_number(pid, "Gid", 0);
    if (status_field(pid, "Groups", text, sizeof text))
        for (char *at = text, *end; count < MAX_GROUPS; at = end, count++) {
            groups[count] = (gid_t)strtoul(at, &end, 10);
            if (end == at)
                break;
        }
    return setgroups(count, groups) == 0 && setresgid(gid, gid, gid) == 0 && setresuid(uid, uid, uid) == 0 && access(path, R_OK) == 0;
}

int process_sees(const struct process *process, const char *path)
{
    if (!same_link_target(process->pid, "ns/mnt") || !same_link_target(process->pid, "root"))
        return 0;
    if (geteuid() != 0 || process->uid == 0)
        return access(path, R_OK) == 0;
    pid_t child = fork();
    if (child == 0)
        _exit(!readable_as(process->pid, path));
    int status = 1;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}
