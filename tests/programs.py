"""Runs a program of Python's in a process of its own."""

import subprocess
import sys


def run_program(program: str, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(  # noqa: S603 - a test's own program
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
