/* The overhead controller (controller.h). */
#include "controller.h"

#include <string.h>

#define STACK_NS 6000.0 /* until it is known: a walk of 45 frames takes 5 us */
#define CALL_NS 80.0
#define SMOOTH_NS 500e6
#define WINDOW_MIN_NS 250e6
#define WINDOW_MAX_NS 10e9
#define FIRST_WINDOW_NS 500e6
#define WINDOW_NS 2e9 /* while recording is within the budget: over this time its mean is taken */
#define PAUSE_MAX_NS 60e9
#define CYCLE_NS 20e6       /* until it is known */
#define CYCLE_MAX_NS 1e9
#define BURST_NS 250e6      /* stacks of this time's share may come at once */
#define STACKS_LEAST 0.1    /* of the budget is for stacks even when recording takes all of it */
#define STACKS_IN_WINDOW 0.25 /* of what recording costs: in windows the rest of the time is for nothing else */
#define COUNTED_LEAST 0.1 /* of what launches cost that wait for the device anyway */
#define RANGES_MOST 0.5     /* of the budget is for NVTX ranges */
#define RANGES_MORE 0.8     /* of that, so that what is followed does not go up and down all the time */
#define RANGES_AGAIN_NS 10000000000ull
#define SKIPPED_NS 10.0     /* a begin or an end of a range that is not followed */
#define WAITS_MOST 0.25     /* of the budget is for the stacks of waits */

static double least(double a, double b) { return a < b ? a : b; }
static double most(double a, double b) { return a > b ? a : b; }

static double ratio_of(struct controller *c) /* [0.5, 1.5), by chance */
{
    uint64_t x = c->random += 0x9e3779b97f4a7c15ull; /* splitmix64 */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    x ^= x >> 31;
    return 0.5 + (double)(x >> 11) / 9007199254740992.0;
}

static uint64_t grown(uint64_t from, uint64_t to) { return to > from ? to - from : 0; }

void controller_begin(struct controller *c, uint32_t budget_ppm, const struct controller_counts *now)
{
    if (!(c->stack_ns > 0))
        c->stack_ns = STACK_NS;
    if (!(c->call_ns > 0))
        c->call_ns = CALL_NS;
    if (!(c->range_ns > 0)) {
        c->range_ns = RANGE_NS;
        c->range_depth = RANGE_DEPTHS;
    }
    c->budget_ppm = budget_ppm;
    c->before = c->window = *now;
    c->settled = 0;
    c->behind *= 0.5; /* what was is no longer sure */
    if (!(c->window_ns > 0))
        c->window_ns = FIRST_WINDOW_NS;
}

/* Ranges are looked at in pauses too, and what they cost then is not in any window. */
static void learn(struct controller *c, const struct controller_counts *now)
{
    uint64_t ranges = grown(c->before.timed_ranges, now->timed_ranges);
    if (ranges > 0) {
        double mean = (double)grown(c->before.timed_ranges_ns, now->timed_ranges_ns) / (double)ranges;
        c->range_ns += (double)ranges / ((double)ranges + 20) * (least(mean, 1e5) - c->range_ns);
    }
    uint64_t stacks = grown(c->before.stacks, now->stacks), calls = grown(c->before.timed_calls, now->timed_calls);
    if (stacks > 0) {
        double mean = (double)grown(c->before.probe_ns, now->probe_ns) / (double)stacks;
        double weight = (double)stacks / ((double)stacks + 200); /* of old knowledge 200 stacks' worth is kept */
        c->stack_ns += weight * (least(mean, 1e6) - c->stack_ns);
    }
    if (calls > 0) {
        double mean = (double)grown(c->before.timed_ns, now->timed_ns) / (double)calls;
        c->call_ns += (double)calls / ((double)calls + 50) * (least(mean, 1e5) - c->call_ns);
    }
}

/* Rates as means over the last half a second or so; at first, over all that there was. */
static void smooth(struct controller *c, const struct controller_counts *now)
{
    double dt = (double)grown(c->before.now_ns, now->now_ns);
    if (dt <= 0)
        return;
    double launches = (double)grown(c->before.launches, now->launches);
    double nodes = (double)grown(c->before.records, now->records) - launches;
    c->settled = least(c->settled + dt, SMOOTH_NS);
    double part = least(dt / c->settled, 1);
    uint64_t judged = grown(c->before.judged, now->judged);
    if (judged > 0)
        c->behind += least(part, 0.5) * (least((double)grown(c->before.behind, now->behind) / (double)judged, 1) - c->behind);
    c->launches += part * (launches / dt - c->launches);
    c->nodes += part * (nodes / dt - c->nodes); /* records come late: the mean may be below 0 for a moment */
    c->waits += part * ((double)grown(c->before.waits, now->waits) / dt - c->waits);
    c->wait_share += part * ((double)grown(c->before.wait_ns, now->wait_ns) / dt - c->wait_share);
    c->others += part * ((double)grown(c->before.others, now->others) / dt - c->others);
    c->other_share += part * ((double)grown(c->before.other_ns, now->other_ns) / dt - c->other_share);
    for (uint32_t depth = 0; c->range_depth > 0 && depth < RANGE_DEPTHS; depth++) /* 0: nobody counts */
        c->ranges[depth] += part * ((double)grown(c->before.range_calls[depth], now->range_calls[depth]) / dt - c->ranges[depth]);
}

/* The part of the launching threads' time that is counted. */
static double counted(const struct controller *c) { return most(1 - c->behind, COUNTED_LEAST); }

/* What so many calls cost without their stacks, or so many a ns. */
static double cost_of(const struct controller *c, double launches, double nodes, double waits)
{
    double of_threads = (launches + waits) * (CUPTI_CALL_NS + c->call_ns) + launches * most(CUPTI_RECORD_NS - CUPTI_DEVICE_NS, 0);
    return counted(c) * of_threads + launches * least(CUPTI_RECORD_NS, CUPTI_DEVICE_NS) + most(nodes, 0) * CUPTI_NODE_NS;
}

/* What so many begins and ends of ranges cost, or so many a ns, when those of less than `deep` others are followed. */
static double cost_of_ranges(const struct controller *c, const double calls[RANGE_DEPTHS], uint32_t deep)
{
    double cost = 0;
    for (uint32_t depth = 0; depth < RANGE_DEPTHS; depth++)
        cost += calls[depth] * (depth < deep ? c->range_ns : deep == 0 ? 0 : least(SKIPPED_NS, c->range_ns));
    return counted(c) * cost;
}

/* How deep ranges may be. */
static uint32_t depth_within(struct controller *c, uint64_t now, double most_of_it)
{
    if (c->range_depth == 0 && now < c->ranges_again_ns)
        return 0;
    if (c->range_depth == 0) { /* to see how many they are now */
        for (uint32_t depth = 0; depth < RANGE_DEPTHS; depth++)
            c->ranges[depth] = 0;
        return RANGE_DEPTHS;
    }
    uint32_t deep = RANGE_DEPTHS;
    while (deep > 0 && cost_of_ranges(c, c->ranges, deep) > most_of_it * (deep > c->range_depth ? RANGES_MORE : 1))
        deep--;
    if (deep == 0)
        c->ranges_again_ns = now + RANGES_AGAIN_NS;
    return deep;
}

double controller_cost(const struct controller *c, const struct controller_counts *from, const struct controller_counts *to)
{
    double launches = (double)grown(from->launches, to->launches), nodes = (double)grown(from->records, to->records) - launches;
    double ranges[RANGE_DEPTHS];
    for (uint32_t depth = 0; depth < RANGE_DEPTHS; depth++)
        ranges[depth] = (double)grown(from->range_calls[depth], to->range_calls[depth]);
    double of_threads = (double)grown(from->probe_ns, to->probe_ns) + (double)grown(from->other_ns, to->other_ns) +
                        (double)grown(from->others, to->others) * CUPTI_CALL_NS;
    return cost_of(c, launches, nodes, (double)grown(from->waits, to->waits)) + counted(c) * of_threads +
           cost_of_ranges(c, ranges, c->range_depth);
}

/* The smallest power of two that is at least `weight`, as its exponent. */
static uint32_t shift_of(double weight)
{
    uint32_t shift = 0;
    while (shift < MAX_SHIFT && (double)(1u << shift) < weight)
        shift++;
    return shift;
}

/* At the end of a window: how long to pause for what it has cost; 0: it was within the budget, go on. */
static uint64_t pause_after(struct controller *c, const struct controller_counts *now, double budget)
{
    double recorded = (double)grown(c->window.now_ns, now->now_ns);
    if (recorded < c->window_ns)
        return 0;
    double cost = controller_cost(c, &c->window, now), stacks = counted(c) * (double)grown(c->window.probe_ns, now->probe_ns);
    c->window = *now;
    if (cost - stacks <= budget * recorded) {
        c->window_ns = WINDOW_NS * ratio_of(c);
        return 0;
    }
    double cycle = now->cycle_ns ? least((double)now->cycle_ns, CYCLE_MAX_NS) : CYCLE_NS;
    double window = 4 * cycle * recorded / cost; /* so that a fifth goes into coming and going */
    c->window_ns = least(most(window, WINDOW_MIN_NS), WINDOW_MAX_NS) * ratio_of(c);
    /* The pause has to make up for what exceeds the budget, by what of the budget ranges leave over in it: they go on. */
    double left = budget - least(cost_of_ranges(c, c->ranges, c->range_depth), RANGES_MOST * budget);
    return (uint64_t)(least(most((cost + cycle - budget * recorded) / left, WINDOW_MIN_NS), PAUSE_MAX_NS) * ratio_of(c));
}

struct controller_plan controller_step(struct controller *c, const struct controller_counts *now)
{
    struct controller_plan plan = {.range_depth = RANGE_DEPTHS};
    learn(c, now);
    smooth(c, now);
    c->before = *now;
    if (c->budget_ppm == 0) {
        c->range_depth = RANGE_DEPTHS;
        return plan;
    }

    double budget = (double)c->budget_ppm / 1e6, r = c->launches, stack_ns = counted(c) * c->stack_ns;
    plan.range_depth = c->range_depth = depth_within(c, now->now_ns, RANGES_MOST * budget);
    double fixed = cost_of(c, r, c->nodes, c->waits) + counted(c) * (c->others * CUPTI_CALL_NS + c->other_share) +
                   cost_of_ranges(c, c->ranges, c->range_depth);
    double for_waits = least(stack_ns * c->wait_share / WAIT_THRESHOLD_NS, WAITS_MOST * budget);
    plan.wait_ns = WAIT_THRESHOLD_NS;
    if (for_waits > 0)
        plan.wait_ns = (uint32_t)least(most(stack_ns * c->wait_share / for_waits, WAIT_THRESHOLD_NS), 4e9);

    int windows = fixed > budget;
    double room = windows ? STACKS_IN_WINDOW * fixed : most(budget - fixed - for_waits, STACKS_LEAST * budget);
    if (r * stack_ns > room)
        plan.shift = shift_of(r * stack_ns / room);
    plan.stacks_at_once = (uint32_t)most(budget * BURST_NS / stack_ns, 32);

    plan.pause_ns = pause_after(c, now, budget);
    return plan;
}
