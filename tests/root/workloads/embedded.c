/* A C program that embeds Python: argv[1] is the code that it runs. */
#include <Python.h>

__attribute__((noinline)) int run_code(const char *code) {
    int failed = PyRun_SimpleString(code);
    return failed + 1;
}

int main(int argc, char **argv) {
    Py_InitializeEx(0);
    int result = argc > 1 ? run_code(argv[1]) : 0;
    Py_Finalize();
    return result;
}
