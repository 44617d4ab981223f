"""(c) Numbers kept between tasks, measured on heads that learned, against the paper's formula."""

from __future__ import annotations

import torch

from benchmarks.measure import Row
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import CIFNetHead, Head, RidgeHead

D, CLASSES, CAPACITY = 512, 100, 2000


def paper(d: int, classes: int, buffer: int) -> int:
    """``B·d + C(2(d+1) + (d+1)r + r)`` with full rank r = d+1 (the paper's appendix on memory)."""
    return buffer * d + classes * (2 * (d + 1) + (d + 1) ** 2 + (d + 1))


def learned(head: Head, tasks: int) -> tuple[int, int]:
    """Learn random embeddings in ``tasks`` tasks; numbers that persist in the head and in its buffer."""
    generator = torch.Generator().manual_seed(0)
    buffer = CalibrationBuffer(CAPACITY)
    for labels in torch.arange(CLASSES).chunk(tasks):
        y = labels.repeat(CAPACITY // CLASSES + 1)
        z = torch.randn(len(y), D, generator=generator)
        head.begin_task(labels.tolist())
        head.observe(z, y)
        head.solve()
        if head.uses_buffer:
            buffer.add(z, y, y * 10**6 + torch.arange(len(y)))
            buffer.commit()
    head.refresh()
    persistent = sum(t.numel() for t in head.state_dict().values())
    counted = sum(head.state_elements().values())
    assert counted <= persistent < 1.01 * counted, "state_elements() does not say what persists"
    return counted, buffer.state_elements()


def rows() -> list[Row]:
    """One row for each number of tasks, and one for the exact head."""
    reference = paper(D, CLASSES, CAPACITY)
    table = []
    for tasks in (5, 10, 20, 50, 100):
        kept, stored = learned(CIFNetHead(D, ridge=1.0), tasks)
        wanted = "1/7" if tasks == 10 else "reported"
        table.append(_row(f"(c) state, CIFNetHead, K = {tasks}", kept + stored, reference, wanted, "buffer included"))
    kept, stored = learned(RidgeHead(D), 10)
    table.append(_row("(c) state, RidgeHead, any K", kept + stored, reference, "1/50", "no buffer"))
    return table


def _row(name: str, kept: int, reference: int, wanted: str, about: str) -> Row:
    numbers = (f"{kept / 1e6:.2f} M", f"{reference / 1e6:.2f} M", f"1/{reference / kept:.1f}")
    return Row(name, *numbers, wanted, f"d = {D}, C = {CLASSES}, buffer {CAPACITY} in the formula; {about}")
