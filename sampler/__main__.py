"""`python -m gpuprof.sampler`: the privileged process."""

import os
import sys

from gpuprof.sampler.main import main

if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a query that still folds in a pool thread must not hold up the end
