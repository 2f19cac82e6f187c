/* Tells the sampler of this machine, should there be one, that a ring is there: a connection to an abstract socket that is called as the ring
 * is. The kernel tells each side who the other one is; a socket that neither root nor this user made is not the sampler's. */
#define _GNU_SOURCE
#include "ring.h"
#include "session.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifndef MEET_NS
#define MEET_NS 1000000000ull /* the longest wait; it takes 0.1 s, or 0.5 where tables for the stacks have to be made */
#endif
#ifndef BUSY_NS
#define BUSY_NS 250000000ull /* so long is tried while too many others wait to be heard, which can be somebody's doing */
#endif
#define STEP_NS 1000000

static void step(void)
{
    struct timespec moment = {.tv_nsec = STEP_NS};
    nanosleep(&moment, NULL);
}

/* Returns 1: heard, 0: there is nobody, or nobody to be believed, -1: too many wait to be heard. */
static int knock_once(void)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    _Static_assert(sizeof RING_NAME < sizeof to.sun_path, "the name fits");
    memcpy(to.sun_path + 1, RING_NAME, sizeof RING_NAME - 1); /* a zero first: abstract */
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + sizeof RING_NAME);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return 0;
    struct ucred other;
    socklen_t size = sizeof other;
    int failed = connect(fd, (struct sockaddr *)&to, length) < 0;
    int busy = failed && errno == EAGAIN;
    int ours = !failed && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 && (other.uid == 0 || other.uid == geteuid());
    close(fd);
    return busy ? -1 : ours;
}

int knock(int patiently)
{
    uint64_t until = now_ns() + (patiently ? BUSY_NS : 0);
    int heard;
    while ((heard = knock_once()) < 0 && now_ns() < until)
        step();
    return heard > 0;
}

void meet_listener(void)
{
    uint64_t until = now_ns() + MEET_NS;
    while (!ring_has_listener(&session.ring) && now_ns() < until)
        step();
}
