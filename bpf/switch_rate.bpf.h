// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Which switch-outs have their stack taken, where threads are switched out very often: of a thread, and of a CPU, so many
// in a window of time, after a burst at the start.

#define RATE_WINDOW_NS 10000000ull
#define WALKS_PER_THREAD 50  // per window; a thread that waits more often for long is sampled
#define WALKS_PER_CPU 100
#define WALKS_OF_SELDOM 50  // per CPU, too, for threads that wait at most once in a window, and for no others
#define BURST_OF_THREAD 1000  // walks above that, until they are made up for: a program starts its threads in bursts,
#define BURST_OF_CPU 2000     // and what it waits for after that is what it waits for from then on
#define LONG_AGO_WINDOWS 1000

// Which of many events to take, one in k; k depends on past events only, so that a weight of k makes sums right.
static __always_inline u32 one_in(struct switch_rate *rate, u64 now, u32 limit, u32 burst) {
    u64 age = now - rate->since_ns;
    if (age >= RATE_WINDOW_NS) {
        u64 windows = age / RATE_WINDOW_NS;
        if (windows > LONG_AGO_WINDOWS)
            windows = LONG_AGO_WINDOWS;
        u32 spent = rate->spent + rate->now, regained = windows * limit;
        spent = spent > regained ? spent - regained : 0;
        rate->spent = spent < burst ? spent : burst;
        rate->before = windows < 2 ? rate->now : 0;
        rate->now = 0;
        rate->since_ns = now;
    }
    rate->now++;
    if (rate->spent < burst && rate->now <= limit + burst - rate->spent)
        return 1;
    u32 most = rate->before > rate->now ? rate->before : rate->now;
    return most <= limit ? 1 : 1 + most / limit;
}
