/* Whether the process makes, changes or destroys CUDA graphs (graphs.c).
 *
 * CUPTI (13.0) takes part in that, and crashes where another thread finalizes it, or unsubscribes, meanwhile: tests/device/attach_races.py
 * has shown it. It is known only from the callbacks of these calls, so they stay enabled as long as there is a subscription. Some rare calls, by
 * which a graph is changed after it was made, are left out. */
#ifndef GPUPROF_GRAPHS_H
#define GPUPROF_GRAPHS_H

#include <stddef.h>
#include <stdint.h>

#ifndef GRAPHS_QUIET_NS
#define GRAPHS_QUIET_NS 300000000ull /* without such a call before a finalize */
#endif
#ifndef GRAPHS_PAUSE_NS
#define GRAPHS_PAUSE_NS 5000000000ull /* the same in a pause of the budget, which ends with an attach: a process that makes graphs every second stays subscribed */
#endif

/* The calls of the driver that it is known by. */
extern const uint32_t graphs_ids[];
extern const size_t graphs_count;

/* At the enter of one of them, and at its exit; `counted`: its enter was told of in this subscription; `stream`: that of a capture. Any
 * thread's. */
void graphs_entered(void);
void graphs_left(uint32_t cbid, int counted, int failed, const void *stream);

/* Whether a call begins or ends a capture, so that its first parameter is a stream. */
int graphs_is_of_capture(uint32_t cbid);

/* With a new subscription: nothing is known of what is under way. */
void graphs_forget(void);

/* Whether none of these calls is under way, no stream is being captured, and the last one is `quiet_ns` ago. */
int graphs_are_settled(uint64_t quiet_ns);

#endif
