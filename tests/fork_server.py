"""The first import of the server that processes are forked from, and of nothing else.

A fork has none of the threads that torch keeps for its work, and would wait for them for ever. So
the server's own work, such as that of an import, is done by one thread.
"""

import torch

torch.set_num_threads(1)
