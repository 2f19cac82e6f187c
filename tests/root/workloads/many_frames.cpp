// Never twice the same stack: recursion, virtual calls, sorting through callbacks, exceptions, frames of variable size,
// signal handlers, calls through the linkage table, code of the C++ library. For ever.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#define KEEP __attribute__((noinline))

static volatile unsigned long sink;
static unsigned state = 12345;
static unsigned random_number() { return state = state * 1103515245u + 12345u, state >> 8; }

struct Node {
    virtual ~Node() {}
    virtual long visit(int depth) = 0;
};
struct Leaf : Node {
    KEEP long visit(int depth) override { return depth + (long)random_number() % 7; }
};
struct Inner : Node {
    Node *left, *right;
    Inner(Node *l, Node *r) : left(l), right(r) {}
    KEEP long visit(int depth) override { return left->visit(depth + 1) + right->visit(depth + 2); }
};

KEEP static Node *make(int depth) {
    if (depth == 0)
        return new Leaf;
    return new Inner(make(depth - 1), make(depth - 1));
}

KEEP static int compare(const void *a, const void *b) {
    sink++;
    return *(const int *)a - *(const int *)b;
}

KEEP static long sorts() {
    std::vector<int> values(300);
    for (int &value : values)
        value = (int)(random_number() % 1000);
    std::vector<int> copy = values;
    qsort(copy.data(), copy.size(), sizeof(int), compare);
    std::sort(values.begin(), values.end(), [](int a, int b) { sink++; return a > b; });
    return values[0] + copy[0];
}

KEEP static long variable_frame(int size) {
    char *room = (char *)__builtin_alloca((size_t)size);
    memset(room, size & 255, (size_t)size);
    long sum = 0;
    for (int i = 0; i < size; i += 16)
        sum += room[i];
    return size > 64 ? sum + variable_frame(size / 2) : sum;
}

KEEP static void throws(int depth) {
    if (depth == 0)
        throw std::runtime_error("planned");
    throws(depth - 1);
    sink++;
}
KEEP static long catches() {
    try {
        throws((int)(random_number() % 12));
    } catch (const std::exception &error) {
        return error.what()[0];
    }
    return 0;
}

KEEP static long streams() {
    std::ostringstream out;
    std::map<std::string, int> words;
    for (int i = 0; i < 20; i++) {
        out << i << ' ' << 1.5 * i << ' ';
        words["word" + std::to_string(random_number() % 10)]++;
    }
    char text[256];
    snprintf(text, sizeof text, "%s %f %zu", out.str().substr(0, 40).c_str(), 3.25, words.size());
    return (long)strlen(text) + (long)strtod(text, NULL);
}

KEEP static void on_alarm(int) {
    for (int i = 0; i < 3000; i++)
        sink += (unsigned long)i;
    int few[3] = {3, 1, 2};
    qsort(few, 3, sizeof(int), compare);
}

KEEP static void round_once(Node *tree) {
    sink += (unsigned long)tree->visit(0);
    sink += (unsigned long)sorts();
    sink += (unsigned long)variable_frame((int)(random_number() % 4000) + 16);
    sink += (unsigned long)catches();
    sink += (unsigned long)streams();
}

int main() {
    struct sigaction action = {};
    action.sa_handler = on_alarm;
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 900}, {0, 900}};
    setitimer(ITIMER_REAL, &often, NULL);
    Node *tree = make(7);
    puts("ready");
    fflush(stdout);
    for (;;)
        round_once(tree);
}
