/* How many launches get a stack, and how much of the time is recorded, so that recording costs the launching threads no more than a given
 * share of their time. Pure: everything comes in as numbers, so that it can be tested by simulation.
 *
 * First the share of launches with a stack goes down, down to a tenth of the budget. When recording alone costs more than the budget, time is
 * recorded in windows: of random lengths, so that no period of the workload can keep in step with them. What a launch has cost is the sum over
 * all threads, held against the wall clock: right where they launch in turn, as a training's forward and backward threads do, and on the safe
 * side where they launch side by side. A launch that then waits for the device, which is behind with its work, takes time that the workload
 * would have waited: of what such launches cost their threads only a tenth is counted.
 *
 * NVTX ranges have half of the budget at most. Beyond that, the deepest ones are left out, which are the most frequent: they count as the range
 * that they are in. When even those that are in no other cost too much, no range is looked at for a while.
 */
#ifndef GPUPROF_CONTROLLER_H
#define GPUPROF_CONTROLLER_H

#include <stdint.h>

/* What CUPTI itself costs the thread that makes a call, in ns (H200, CUDA 13.0): its two callbacks, the record of a kernel or copy, and each
 * further kernel of a graph. tests/device/window_trace.py shows whether they hold. */
#ifndef CUPTI_CALL_NS
#define CUPTI_CALL_NS 500.0
#endif
#ifndef CUPTI_RECORD_NS
#define CUPTI_RECORD_NS 1300.0
#endif
#ifndef CUPTI_DEVICE_NS
#define CUPTI_DEVICE_NS 900.0 /* of a record's: what may be the device's own time, which a device that is behind does not hide */
#endif
#ifndef CUPTI_NODE_NS
#define CUPTI_NODE_NS 1100.0
#endif

#ifndef RANGE_NS
#define RANGE_NS 60.0 /* of a push or a pop, until it is known */
#endif

#define RANGE_DEPTHS 8u  /* ranges are counted by how many they are in; the last are all that are deeper */
#define WAIT_THRESHOLD_NS 50000u /* waits of this length are all kept, unless that alone costs too much */
#define MAX_SHIFT 20u

struct controller_counts { /* totals so far, as they stand at `now_ns` */
    uint64_t now_ns;
    uint64_t launches;
    uint64_t stacks;   /* launches and waits that called the probe */
    uint64_t probe_ns; /* time of those calls */
    uint64_t timed_calls, timed_ns; /* callbacks that were timed, without the probe */
    uint64_t records;
    uint64_t waits;
    uint64_t wait_ns;
    uint64_t cycle_ns; /* what the last attach and detach took */
    uint64_t others, other_ns; /* callbacks of neither launches nor waits, and our own part of them */
    uint64_t range_calls[RANGE_DEPTHS];      /* of NVTX, by depth: begins and ends, also those that were left out */
    uint64_t timed_ranges, timed_ranges_ns; /* those that were timed, of ranges that were followed */
    uint64_t judged, behind; /* launches of which it is known whether the device was behind with its work, and those where it was */
};

struct controller_plan {
    uint32_t shift;     /* one launch of 2^shift has its stack taken, by chance */
    uint32_t wait_ns;   /* waits shorter than this are kept by chance d / wait_ns; 0: all are kept */
    uint32_t stacks_at_once; /* stacks until the next step, after which only one launch of 2^(shift + 6) gets one; 0: no limit */
    uint32_t range_depth; /* ranges that are in so many others or more are not followed; RANGE_DEPTHS: all are */
    uint64_t pause_ns;  /* > 0: stop recording now, for so long */
};

struct controller {
    uint32_t budget_ppm;
    uint64_t random;
    double stack_ns, call_ns;                                        /* learnt */
    double range_ns;                                                 /* learnt */
    double launches, nodes, waits, wait_share, others, other_share;  /* per ns, smoothed */
    double ranges[RANGE_DEPTHS];                                     /* the same */
    uint64_t ranges_again_ns;                                        /* until then no range is looked at */
    uint32_t range_depth;
    double behind;                                                   /* share of launches, smoothed */
    double settled;                                                  /* ns of recording that these are the mean of */
    double window_ns;                                                /* the present window's length */
    struct controller_counts before, window;                         /* at the last step; when the window began */
};

/* At an attach, with the counts as they are then; what was learnt before is kept. budget_ppm 0: no limit. */
void controller_begin(struct controller *c, uint32_t budget_ppm, const struct controller_counts *now);

/* Every few dozen milliseconds while recording. */
struct controller_plan controller_step(struct controller *c, const struct controller_counts *now);

/* What recording has cost between two moments, in ns, by what is known of its parts. */
double controller_cost(const struct controller *c, const struct controller_counts *from, const struct controller_counts *to);

#endif
