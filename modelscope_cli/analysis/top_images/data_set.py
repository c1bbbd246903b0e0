"""`featuremaps --top-images`: from a model and a data set to the record and the sheets."""

from modelscope_cli.analysis.activations.channel_choice import ChannelChoice
from modelscope_cli.analysis.activations.maps import nothing_to_draw
from modelscope_cli.analysis.results import Results
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.analysis.top_images.crops import cut_crops
from modelscope_cli.analysis.top_images.find import find_top_images
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.records.featuremaps import FeatureMapsRecord
from modelscope_cli.records.naming import counted
from modelscope_cli.report.views import figures_of


def rank_data_set(
    subject: Subject, selection: Selection, k: int, choice: ChannelChoice, results: Results
) -> FeatureMapsRecord:
    """Go through all images once, and draw sheets where there is a folder for them.

    Raises:
        UsageError: the inputs are not image files (exit 2).
        CannotRunError: no output has channels, the model raised, or a file cannot be written (exit 4).
    """
    subject.bind()
    found, n_sampled = find_top_images(subject, selection, k, choice)
    never = subject.uncalled(selection, [one.layer.name for one in found])
    hooks = subject.conclude()
    if not any(one.channels for one in found):
        rows = [one.layer for one in found]
        raise nothing_to_draw(rows, never, False, subject.loaded.info.name)
    record = FeatureMapsRecord(
        run=subject.run(),
        maps=tuple(one.layer for one in found),
        contact_sheet=None,
        out_dir=results.path,
        not_called=never,
        hooks=hooks,
        top_images=k,
        images=subject.inputs.n_images,
        sampled=n_sampled,
        channels=tuple(row for one in found for row in one.channels),
    )
    by_layer = {one.layer: one for one in found}
    with results.open() as stage:
        if stage is not None:
            record = figures_of("featuremaps").save_sheets(
                record, stage, lambda layer, side: cut_crops(subject.inputs, by_layer[layer], side)
            )
    if results.path is not None:
        n_sheets = len({row.file for row in record.channels if row.file})
        subject.progress.note(f"wrote {results.path} ({counted(n_sheets, 'sheet')})")
    return record
