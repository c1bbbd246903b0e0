"""Makes `tour.ipynb`, a short walk through the Python side, with its outputs.

python samples/tour.py                 needs nbclient and ipykernel, which `pip install .[test]` brings
python samples/tour.py --output FILE   elsewhere
"""

import argparse
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

HERE = Path(__file__).resolve().parent
TOUR = HERE / "tour.ipynb"

# One cell after the other: text where it begins with a mark of Markdown, code otherwise.
CELLS = (
    """
# modelscope in a notebook

Everything `modelscope` prints on the command line is a record here: a table to look at, rows to compute with,
a figure to keep. It all runs offline, on the samples beside this notebook.
""",
    """
import torch

import modelscope_cli as ms

torch.manual_seed(0)
model = ms.load("tiny_resnet.py:TinyResNet", checkpoint="tiny_resnet.safetensors").module
sick = ms.load("tiny_resnet.py:TinyResNet", checkpoint="sick.safetensors").module
""",
    """
## What is it made of?

`model` is an ordinary `nn.Module`. Any of yours will do just as well; it stays as it is.
""",
    """
ms.summary(model, input_shape=(1, 3, 224, 224))
""",
    """
## What do its layers put out?

The second network was injured in two places. The statistics of one image show both: dead channels behind the first
batch norm, and an explosion in `block3.conv1`.
""",
    """
record = ms.stats(sick, "star.png")
record
""",
    """
record.plot()
""",
    """
## Rows

A row is found by its label, and `to_rows()` gives plain dicts: `pandas.DataFrame(record.to_rows())` is a data
frame.
""",
    """
print("dead:", record["relu"].dead_channels, "of", record["relu"].channels)

largest = sorted(record.to_rows(), key=lambda row: row["std"], reverse=True)
[(row["name"], round(row["std"], 1)) for row in largest[:3]]
""",
    """
## Change what flows

`hook` takes what `--hook` takes, or a function of yours, around your own forward and backward. Afterwards it is
gone.
""",
    """
x = torch.randn(2, 3, 64, 64)


def halve(gradient):
    return gradient / 2


with ms.hook(model, "zero[0..7]@block1.conv1", ("grad", "block2.conv1", halve)) as h:
    model(x).sum().backward()

[(report.spec, report.fired, f"{report.changed_fraction:.0%} changed") for report in h.reports]
""",
    """
## Look on while it runs

`observe` gathers the same statistics over as many forwards as you like, in whichever mode the model is.
""",
    """
with ms.observe(model, layer="type:Conv2d") as seen, torch.no_grad():
    for _ in range(3):
        model(torch.randn(4, 3, 64, 64))

seen
""",
)


def build() -> nbformat.NotebookNode:
    """Return the notebook without outputs, the same one each time."""
    cells = []
    for number, text in enumerate(CELLS):
        make = new_markdown_cell if text.lstrip().startswith("#") else new_code_cell
        cells.append(make(text.strip(), id=f"cell-{number}"))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})


def main() -> None:
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("--output", type=Path, default=TOUR, help="where to write it")
    path = parser.parse_args().output
    notebook = build()
    NotebookClient(
        notebook, timeout=300, record_timing=False, resources={"metadata": {"path": str(HERE)}}
    ).execute()
    nbformat.validate(notebook)
    notebook.metadata.language_info = {"name": "python"}  # without the version it ran on
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    print(f"wrote {path.name}, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
