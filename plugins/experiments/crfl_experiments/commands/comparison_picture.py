"""The figure of a comparison, as a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from crfl_core.errors import ConfigError, StoreError
from crfl_experiments.sweeps.comparing import Run, questions_of
from crfl_experiments.sweeps.folder import SweepFolder
from crfl_experiments.sweeps.pictures import FORMATS, picture


def draw(
    runs: Sequence[Run], paths: Sequence[Path], wanted: Path | None, against: str | None, measure: str | None
) -> Path | None:
    """Draw into the file that is asked for, else into a sweep. None: nobody asked, and there is no place for it."""
    asked = wanted is not None or against is not None or measure is not None
    target = wanted or default_target(paths)
    if target is None:
        if asked:
            raise ConfigError("--figure: say where the figure of several runs goes, for example --figure compare.png")
        return None
    if not asked and not questions_of(runs):
        return None
    formats = {f".{one}": one for one in FORMATS}
    if target.suffix not in formats:
        raise ConfigError(f"--figure {target}: must end with one of {', '.join(formats)}")
    from crfl_reports.figures import image_of

    content = image_of(picture(runs, against, measure), formats[target.suffix])
    try:
        target.write_bytes(content)
    except OSError as error:
        raise StoreError(f"{target}: cannot be written: {error.strerror}") from error
    return target


def default_target(paths: Sequence[Path]) -> Path | None:
    """The figure of a sweep lies in it."""
    return paths[0] / "compare.png" if len(paths) == 1 and SweepFolder(paths[0]).is_marked else None
