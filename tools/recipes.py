"""Throw-away additions made as CONTRIBUTING tells, to count the files of the package that each touches.

`tests/test_recipes.py` makes all of them in a copy of the package, and uses what they added.
"""

from pathlib import Path

Additions = tuple[tuple[str, str, str], ...]
# By name: the file, the text before which something is inserted (empty: a new file), and what is inserted.
RECIPES: dict[str, Additions] = {
    "column of stats": (
        (
            "records/stats.py",
            "    zero_fraction: Annotated",
            "    doubled: Annotated[float | None, figure(rank=9)] = None\n",
        ),
        (
            "analysis/activations/observer.py",
            "        std=moments.std,\n",
            "        doubled=2 * moments.mean,\n",
        ),
    ),
    "rule of training": (
        (
            "rules/training/recipe.py",
            '@training_rule("MS719"',
            '@training_rule("MS799", "has-a-rate", WARNING, 0, Link.BOOKKEEPING)\n'
            "def has_a_rate(case: Case, threshold: float) -> Iterator[TrainingSighting]:\n"
            '    """There is a learning rate.\n\n'
            "    Measure: none\n    Source: certain\n    Hint: leave it\n"
            '    Why: without one nothing is learnt\n    """\n'
            "    for series in case.course.lr:\n"
            '        yield TrainingSighting(None, 0, 1.0, f"{series.optimizer} has a learning rate", None)\n\n\n',
        ),
    ),
    "method of explanation": (
        (
            "analysis/explaining/methods/of_pixels.py",
            "def input_x_gradient",
            "def brightness(scored: Scored, image: Tensor) -> Map:\n"
            '    """Return how bright each pixel is."""\n'
            '    return Map(image[0].sum(0).float(), "the brightness of each pixel")\n\n\n',
        ),
        ("analysis/explaining/methods/__init__.py", "    input_x_gradient,\n", "    brightness,\n"),
        (
            "analysis/explaining/methods/__init__.py",
            '    "occlusion": ',
            '    "brightness": Method(brightness, PIXELS),\n',
        ),
        ("analysis/explaining/request.py", '"occlusion")', '"brightness", '),
    ),
    "kind of output": (
        (
            "analysis/outputs/angles.py",
            "",
            '"""Angles."""\n\n'
            "from modelscope_cli.analysis.outputs.vectors import Vectors\n\n\n"
            "class Angles(Vectors):\n"
            '    """Angles of each image, in degrees."""\n\n'
            '    score_name = "angle"\n\n'
            "    @property\n"
            "    def words(self) -> str:\n"
            '        return f"{self.values.shape[1]} angles"\n',
        ),
        (
            "analysis/outputs/read.py",
            '        if kind in ("classes", "labels"):\n',
            '        if kind == "angles":\n            return Angles(tensor)\n',
        ),
        (
            "analysis/outputs/read.py",
            '        if self.wanted != "auto":\n            return self.wanted, ""\n',
            '        if last_name(path) == "angles":\n            return "angles", "its name"\n',
        ),
        (
            "analysis/outputs/read.py",
            "from modelscope_cli.analysis.outputs.boxes import",
            "from modelscope_cli.analysis.outputs.angles import Angles\n",
        ),
    ),
    "format": (
        (
            "report/formats.py",
            "FORMATS = {",
            "def render_jsonl(sheet: Sheet) -> str:\n"
            '    """Return each row as one line of JSON."""\n'
            "    rows = ({column.key: column.value(row) for column in sheet.columns} for row in sheet.rows)\n"
            '    return "".join(render_json(row, is_indented=False) for row in rows)\n\n\n',
        ),
        (
            "report/formats.py",
            '    "brief": Format(',
            '    "jsonl": Format(render_jsonl, ".jsonl", is_rows_only=True),\n',
        ),
    ),
    "library": (
        ("models/hubs.py", '"hf": "transformers"}', '"tiny": "tinylib", '),
        (
            "models/from_libraries.py",
            "class Library(NamedTuple):",
            "def _tiny_architecture(request: ModelRequest, name: str) -> Architecture:\n"
            "    import tinylib\n\n"
            '    return Architecture("tiny", f"tiny:{name}", "custom", lambda _: tinylib.create(name), False)\n\n\n'
            "def _fill_tiny(architecture: Architecture, request: ModelRequest, name: str) -> Filled:\n"
            "    return fill_randomly(architecture, request)\n\n\n",
        ),
        ("models/from_libraries.py", '"hf": Library(', '"tiny": Library(_tiny_architecture, _fill_tiny), '),
        (
            "models/from_libraries.py",
            "from modelscope_cli.models.request import",
            "from modelscope_cli.models.initialise import fill_randomly\n",
        ),
    ),
    "chart": (
        (
            "report/stats/figures.py",
            "def draw_distributions(",
            "def draw_means(record: StatsRecord) -> Any:\n"
            '    """Draw the mean of every layer."""\n'
            "    from modelscope_cli.report.canvas import axes_at, new_figure\n\n"
            '    figure = new_figure(6, 4, "means", is_laid_out=False)\n'
            "    axes_at(figure, 0.5, 0.5, 5, 3).plot([row.mean for row in record.layers])\n"
            "    return figure\n\n\n",
        ),
        (
            "report/stats/__init__.py",
            "from modelscope_cli.report.stats.table import",
            "from modelscope_cli.report.stats.figures import draw_means\n",
        ),
        ("report/stats/__init__.py", '"distributions": draw_distributions}', '"means": draw_means, '),
    ),
    "command": (
        (
            "records/kinds.py",
            "",
            '"""What `kinds` returns."""\n\n'
            "from dataclasses import dataclass\n"
            "from typing import Annotated, ClassVar\n\n"
            "from modelscope_cli.records.display import count, words\n"
            "from modelscope_cli.records.display import Row\n"
            "from modelscope_cli.records.run import Record\n\n\n"
            "@dataclass(frozen=True, slots=True)\n"
            "class Kind(Row):\n"
            '    """One class of layers. `layers`: how many there are."""\n\n'
            '    name: Annotated[str, words("class", rank=0)]\n'
            "    layers: Annotated[int, count(rank=0)]\n\n\n"
            "@dataclass(frozen=True, slots=True)\n"
            "class KindsRecord(Record):\n"
            '    """What `kinds` returns."""\n\n'
            '    document: ClassVar[str] = "kinds"\n'
            "    kinds: tuple[Kind, ...]\n",
        ),
        (
            "analysis/kinds.py",
            "",
            '"""`kinds`: count the layers of each class."""\n\n'
            "from collections import Counter\n"
            "from typing import Any, Unpack\n\n"
            "from modelscope_cli.analysis.subject import Subject\n"
            "from modelscope_cli.models.request import Model\n"
            "from modelscope_cli.records.keywords import Keywords, spelled_out\n"
            "from modelscope_cli.records.kinds import Kind, KindsRecord\n"
            "from modelscope_cli.records.progress import Progress\n\n\n"
            "@spelled_out\n"
            "def kinds(\n"
            '    model: "Model" = "resnet34",\n'
            "    inputs: Any = None,\n"
            "    *,\n"
            "    least: int = 1,\n"
            "    progress: Progress | None = None,\n"
            "    **keywords: Unpack[Keywords],\n"
            ") -> KindsRecord:\n"
            '    """Return how many layers there are of each class.\n\n'
            "    Args:\n"
            "        model: a name or file as on the command line, or a module of yours.\n"
            "        inputs: paths, PIL images, tensors; None for seeded noise.\n"
            "        least: leave out classes with fewer layers.\n"
            '    """\n'
            '    subject = Subject("kinds", model, inputs, keywords, progress=progress)\n'
            "    subject.open()\n"
            "    found = Counter(type(module).__name__ for module in subject.loaded.module.modules())\n"
            "    rows = tuple(Kind(name, n) for name, n in found.items() if n >= least)\n"
            "    return KindsRecord(run=subject.run(), kinds=rows)\n",
        ),
        (
            "records/documents.py",
            '    "lrfind": (',
            '    "kinds": ("modelscope_cli.records.kinds", "KindsRecord"),\n',
        ),
        ("__init__.py", '    "list_models": "', '    "kinds": "modelscope_cli.analysis.kinds",\n'),
        (
            "__init__.py",
            "    from modelscope_cli.analysis.load import load as load\n",
            "    from modelscope_cli.analysis.kinds import kinds as kinds\n",
        ),
        (
            "report/kinds/__init__.py",
            "",
            '"""How the result of `kinds` is shown."""\n\n'
            "from modelscope_cli.records.kinds import Kind, KindsRecord\n"
            "from modelscope_cli.report.sheet import Sheet, field_columns\n"
            "from modelscope_cli.report.view import View\n\n"
            'COLUMNS = field_columns(Kind, "name layers")\n\n\n'
            "def kinds_sheet(record: KindsRecord) -> Sheet:\n"
            '    """Return the classes of layers."""\n'
            "    return Sheet(record.run.model.described, COLUMNS, record.kinds)\n\n\n"
            "class KindsView(View[KindsRecord]):\n"
            '    """The table of `kinds`."""\n\n'
            "    sheet = staticmethod(kinds_sheet)\n"
            "    columns = COLUMNS\n",
        ),
        (
            "report/registry.py",
            '    "lrfind": (',
            '    "kinds": ("modelscope_cli.report.kinds", "KindsView"),\n',
        ),
        (
            "shell/overview.py",
            '        "modelscope_cli.commands.predict": ',
            '        "modelscope_cli.commands.kinds": "Count the layers of each class.",\n',
        ),
        (
            "commands/kinds.py",
            "",
            '"""`modelscope kinds`."""\n\n'
            "from typing import Annotated\n\n"
            "import typer\n\n"
            "import modelscope_cli as ms\n"
            "from modelscope_cli.shell.console import PROGRESS\n"
            "from modelscope_cli.shell.options import ImagesArgument, InputOptions, ModelArgument, ModelOptions\n"
            "from modelscope_cli.shell.output import emit\n"
            "from modelscope_cli.shell.output_options import OutputOptions\n"
            "from modelscope_cli.shell.parameters import command\n\n\n"
            "@command\n"
            "def kinds(\n"
            "    first: ModelArgument = None,\n"
            "    images: ImagesArgument = None,\n"
            '    least: Annotated[int, typer.Option(min=1, help="Leave out classes with fewer layers.")] = 1,\n'
            "    *,\n"
            "    on: ModelOptions,\n"
            "    data: InputOptions,\n"
            "    show: OutputOptions,\n"
            ") -> None:\n"
            '    """Count the layers of each class.\n\n'
            "    Examples:\n\n"
            "      modelscope kinds resnet34 --least 3\n"
            '    """\n'
            "    from modelscope_cli.report.kinds import COLUMNS, kinds_sheet\n\n"
            "    where = show.begin()\n"
            "    where.layout.check(COLUMNS)\n"
            "    model, files = on.choose(first, images)\n"
            "    inputs = data.request(files, on.seed)\n"
            "    record = ms.kinds(model, inputs, least=least, progress=PROGRESS)\n"
            "    emit(where, kinds_sheet(record), record)\n",
        ),
    ),
}


def files_of(name: str) -> list[str]:
    """Return the files that a recipe touches, without the empty `__init__.py` of a new folder."""
    return list(dict.fromkeys(file for file, _, _ in RECIPES[name]))


def add(name: str, package: Path) -> None:
    """Make the additions of a recipe in a copy of the package.

    Raises:
        ValueError: the place for an addition is not there, or not the only one.
    """
    for file, before, text in RECIPES[name]:
        path = package / file
        if not before:
            path.parent.mkdir(exist_ok=True)
            (path.parent / "__init__.py").touch()
            path.write_text(text, encoding="utf-8")
            continue
        source = path.read_text(encoding="utf-8")
        if source.count(before) != 1:
            raise ValueError(f"{file} has {before!r} {source.count(before)} times")
        path.write_text(source.replace(before, text + before), encoding="utf-8")
