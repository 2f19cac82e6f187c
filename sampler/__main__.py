"""`python -m gpuprof.sampler`: the privileged process."""

import os
import signal
import sys

from gpuprof.sampler import memory
from gpuprof.snapshots.process_name import SAMPLER, set_process_name

if __name__ == "__main__":
    # Until main has handlers of its own nothing needs an end in order, and Python would show a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    set_process_name(SAMPLER)
    memory.configure()
    from gpuprof.sampler import ahead

    ahead.begin(sys.argv[1:])
    from gpuprof.sampler.main import main

    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a query that still folds in a pool thread must not hold up the end
