"""`tools/plain.py` finds each of its phrases, and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

from plain import EXEMPT, PHRASES, ROOT, find_phrases, tracked

EXAMPLES = {
    "anew": "The log begins anew.",
    "anybody": "Anybody may ask.",
    "as good as none": "It is as good as none.",
    "as it was": "It stays as it was.",
    "begins again": "The day begins again.",
    "are away": "Those that are away.",
    "is no more": "The key is no more.",
    "was told": "The caller was told.",
    "goes on": "The stream goes on.",
    "nobody": "NOBODY knows.",
    "none such": "There is none such.",
    "of whom": "Those of whom one refused.",
    "of yours": "A tag of yours.",
    "somebody": "Somebody changed it.",
    "stands": "A number stands there.",
    "what it was": "It is what it was.",
    "whatever": "Whatever it is.",
    "whichever": "Whichever comes first.",
    "whoever": "Whoever asks waits.",
    "whomever": "It answers whomever asks.",
    "whose it is": "It says whose it is.",
}


@pytest.mark.parametrize("phrase", EXAMPLES)
def test_each_phrase_is_found(phrase: str) -> None:
    assert [one.phrase for one in find_phrases("a.py", EXAMPLES[phrase])] == [phrase]


def test_each_phrase_has_an_example() -> None:
    assert len(EXAMPLES) == len(PHRASES)


@pytest.mark.parametrize(
    "text", ["It understands", "a standstill", "as soon as it is there", "a renewal", "told apart"]
)
def test_other_words_are_not(text: str) -> None:
    assert list(find_phrases("a.py", text)) == []


@pytest.mark.parametrize("mark", ["", "# ", "* ", "// "])
def test_a_phrase_may_continue_on_the_next_line(mark: str) -> None:
    """Its line is the one where it starts."""
    (found,) = find_phrases("a.py", f"one\n    {mark}The stream goes\n    {mark}on.")
    assert (found.line, found.phrase) == (2, "goes on")


def test_the_files_that_name_the_phrases_are_exempt() -> None:
    listed = tracked(["docs/style.md", "docs/tour.md", "tools", "tests/test_plain_tool.py"])
    assert "docs/tour.md" in listed
    assert not EXEMPT & set(listed)


def test_the_command_fails_if_it_finds_one(tmp_path: Path) -> None:
    commands = (["init", "-q"], ["add", "."])
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "plain.py").write_text((ROOT / "tools" / "plain.py").read_text())
    (tmp_path / "page.md").write_text("Fine.\n\nIt begins anew.\n")
    (tmp_path / "plain.md").write_text("Fine.\n")
    for command in commands:
        subprocess.run(["git", *command], cwd=tmp_path, check=True)  # noqa: S603, S607

    def run(*names: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "tools/plain.py", *names]
        return subprocess.run(  # noqa: S603
            argv, cwd=tmp_path, check=False, capture_output=True, text=True
        )

    found = run()
    assert (found.returncode, found.stdout) == (1, "page.md:3: anew\n")
    assert "plain: 1 phrase" in found.stderr
    assert run("plain.md").returncode == 0
