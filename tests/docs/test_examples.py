"""Every Python block of the API pages runs, in order, in one namespace a page."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

#: Pages whose blocks are programs, and the libraries that they need beside the package's own.
PAGES = {"ffn.md": ["equinox"]}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run(page, capsys):
    for library in PAGES[page]:
        pytest.importorskip(library)
    text = (DOCS / page).read_text()
    blocks = list(BLOCK.finditer(text))
    assert blocks
    namespace = {"__name__": page}
    for block in blocks:
        line = text[: block.start(1)].count("\n")
        # Blank lines in front, so that a traceback points at the page's own line.
        exec(compile("\n" * line + block[1], str(DOCS / page), "exec"), namespace)
    assert "say which: geglu_erf, geglu_tanh." in capsys.readouterr().out
