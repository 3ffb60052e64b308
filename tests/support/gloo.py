"""What a script of ranks begins and ends with."""

import gc
import os
import sys
from pathlib import Path

import torch.distributed as dist

from gradwatch.errors import GradwatchError

# ends gloo's threads: one that lets go of a tensor while Python ends aborts it (pytorch#179291)
AT_THE_END = "\nimport gc\n\ngc.collect()\n"


def leave():
    """End at once: gloo's threads may still let go of tensors while Python finalizes, which aborts (pytorch#190489)."""
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


def each_kind(train):
    """Over the ranks: `train(kind, folder)` of each of the script's arguments `KIND... FOLDER`, in FOLDER/KIND.

    What gradwatch refuses stands in FOLDER/KIND.refused.
    """
    *kinds, folder = sys.argv[1:]
    dist.init_process_group("gloo")
    for kind in kinds:
        try:
            train(kind, Path(folder) / kind)
        except GradwatchError as error:
            (Path(folder) / f"{kind}.refused").write_text(str(error))
        gc.collect()
    leave()
