"""Idles for some seconds, then loads a library and burns CPU in it."""

import ctypes
import sys
import time


def call_late(library):
    arguments = (ctypes.c_char_p * 3)(b"late", b"3600", None)
    library.late_main(2, arguments)


time.sleep(float(sys.argv[2]))
call_late(ctypes.CDLL(sys.argv[1]))
