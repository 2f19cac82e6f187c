"""The version of this program, by the name of the folder in which its installer left a record of it.

importlib.metadata reads the same, and has `email`, `zipfile` and more loaded for it: 3 MB that stay. See
the packaging specification "Recording installed projects": NAME-VERSION.dist-info, NAME without dashes.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

_RECORD = re.compile(r"gpuprof_tui-([0-9A-Za-z.!+_]{1,64})\.dist-info", re.IGNORECASE)
UNKNOWN = "0"


def own_version(folders: Sequence[str] | None = None) -> str:
    """The version in the first of these folders (None: where modules are looked for) that has such a record;
    UNKNOWN where none has.
    """
    for folder in sys.path if folders is None else folders:
        try:
            names = os.listdir(folder or ".")
        except OSError:  # a zip file, or a folder that is not there
            continue
        for name in names:
            found = _RECORD.fullmatch(name)
            if found is not None:
                return found[1]
    return UNKNOWN
