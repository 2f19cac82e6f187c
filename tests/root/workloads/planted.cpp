// Burns CPU in a member template, called through a std::function, for ever.
#include <cstdio>
#include <functional>

namespace outer {
template <typename T> struct Worker {
    template <int N> __attribute__((noinline)) T burn(T turns) {
        volatile T sum = 0;
        for (T i = 0; i < turns; i++) sum = sum + i % N;
        return sum;
    }
};
}  // namespace outer

__attribute__((noinline)) long repeat(const std::function<long()> &work) {
    long sum = 0;
    while (sum >= 0) sum += work() & 1;
    return sum;
}

int main() {
    std::puts("ready");
    std::fflush(stdout);
    outer::Worker<long> worker;
    return (int)repeat([&] { return worker.burn<7>(200000) + 1; });
}
