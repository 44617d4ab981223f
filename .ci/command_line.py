"""Write docs/reference/command_line.md from the parsers: python .ci/command_line.py"""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from unittest import mock

from cifnet_pl.__main__ import main
from cifnet_pl.cli.commands import COMMANDS, TRAINER_COMMANDS

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "command_line.md"
TOPICS = ("data", "model", "energy", "predictions", "checkpoint")
HEAD = """# Command line

**You get here:** every command and option. The page is made from the parsers by
`python .ci/command_line.py`.

`cifnet` is short for `python -m cifnet_pl`. Exit codes: 0 success, 1 the run failed, 2 wrong usage,
130 stopped by Ctrl-C, 143 by SIGTERM.
"""


def help_of(*words: str) -> str:
    """Return what ``cifnet WORDS`` prints, at 88 columns."""
    output = io.StringIO()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": "88", "LINES": "50"}),
        contextlib.redirect_stdout(output),
        contextlib.suppress(SystemExit),
    ):
        main(list(words))
    lines = [line.rstrip() for line in output.getvalue().strip().splitlines()]
    return "\n".join(lines)


def page() -> str:
    """Return the page."""
    sections = [HEAD, section("Overview", help_of("--help"))]
    sections.append(section("`cifnet fit`", help_of("fit", "--help")))
    for command, summary in TRAINER_COMMANDS.items():
        if command != "fit":
            sections.append(
                f"## `cifnet {command}`\n\n{summary} The options are those of `fit`.\n"
            )
    for topic in TOPICS:
        title = f"Options of a run: `--{topic}`"
        sections.append(section(title, help_of("fit", "--help", topic)))
    sections.append(
        "The options of `--trainer` are those of Lightning: `cifnet fit --help trainer`.\n"
    )
    for command in sorted(COMMANDS):
        sections.append(section(f"`cifnet {command}`", help_of(command, "--help")))
    return "\n".join(sections)


def section(title: str, text: str) -> str:
    """Return a section with a text as it stands on the screen."""
    return f"## {title}\n\n```text\n{text}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
