"""The runner of the pages' blocks notices a page that does not say the truth."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import REPOSITORY
from tests.trials.docs.__main__ import FENCE, FILES, KIND, PageFailed, blocks_of, check_output, run_page


def page(folder: Path, text: str) -> Path:
    file = folder / "page.md"
    file.write_text(text)
    return file


def test_blocks_run_in_one_shell_and_files_lie_where_it_stands(tmp_path: Path) -> None:
    text = "```sh\nmkdir a && cd a\nX=5\n```\n```python b.py\nprint('from b')\n```\n"
    text += "```sh\npython b.py; echo $X\n```\n```output\nfrom b\n5\n```\n"
    assert run_page(page(tmp_path, text)) == 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```sh\nfalse\n```\n", "line 1: ended with 1"),
        ("text\n\n```sh\necho a\n```\n```output\nb\n```\n", "line 6: printed 'a' where the page says 'b'"),
        ("```\necho\n```\n", "does not say what the block is"),
        ("```text\necho\n```\n", "does not say what the block is"),
        ("```toml\na = 1\n```\n", "does not say what the block is"),
        ("```sh\nexit 3\n```\n", "ended the shell"),
        ("```sh\necho a\n", "a fence is not closed"),
        ("```sh service\necho no\n```\n", "ended without a ready line"),
    ],
)
def test_a_page_that_does_not_do_what_it_says_fails_and_names_the_line(
    tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(PageFailed, match=says):
        run_page(page(tmp_path, text))


def test_output_is_compared_line_by_line_and_dots_stand_for_any() -> None:
    check_output("a\nb\n\nc 5 s\n", "...\nb\nc ... s\n")
    check_output("a\nb\n", "a\n...\n")
    for wanted in ("a\n", "b\na\n", "a\nb\nc\n", "...\na\n"):
        with pytest.raises(PageFailed):
            check_output("a\nb\n", wanted)


def pages_that_are_run() -> dict[str, str]:
    """Name -> text of the pages of `make docs-test`."""
    makefile = (REPOSITORY / "Makefile").read_text()
    (names,) = [
        line.partition(":= ")[2].split() for line in makefile.splitlines() if line.startswith("PAGES")
    ]
    return {name: (REPOSITORY / name).read_text() for name in names}


def test_every_block_of_the_pages_that_are_run_says_what_it_is() -> None:
    untyped = {
        name: [block for block in blocks_of(text) if not KIND.fullmatch(block.kind)]
        for name, text in pages_that_are_run().items()
    }
    assert untyped
    assert not any(untyped.values()), untyped


def test_the_text_before_a_files_block_names_the_file_because_no_reader_sees_the_fence() -> None:
    unnamed = []
    for name, text in pages_that_are_run().items():
        end = 0
        for match in FENCE.finditer(text):
            language, _, file = match["kind"].strip().partition(" ")
            if language in FILES and f"`{file}`" not in text[end : match.start()]:
                unnamed.append((name, file))
            end = match.end()
    assert unnamed == []
