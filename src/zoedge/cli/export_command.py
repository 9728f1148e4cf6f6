"""``zoedge export``: the metrics of a run as csv or parquet."""

from pathlib import Path
from typing import Annotated, Literal

import tyro


def export(
    run: Annotated[Path, tyro.conf.Positional], /, *, to: Literal["csv", "parquet"] = "csv", out: Path | None = None
) -> None:
    """Write the metrics of a run to a file.

    Args:
        run: Folder of the run.
        to: Format; parquet needs pyarrow.
        out: The file; by default named after the run, in this folder.
    """
    from zoedge.experiments.folder import RunFolder

    folder = RunFolder(run)
    target = out or Path(f"{folder.name}.{to}")
    if to == "csv":
        content = (run / "metrics.csv").read_bytes()
        if target.exists() and target.samefile(run / "metrics.csv"):
            raise ValueError(f"{target} is the run's own file: name another with --out")
        target.write_bytes(content[: content.rfind(b"\n") + 1])  # a run may be writing its next row
    else:
        try:
            import pyarrow  # pyright: ignore[reportMissingImports]
            import pyarrow.parquet  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise ImportError("parquet files need pyarrow: pip install 'zoedge[parquet]'") from None
        pyarrow.parquet.write_table(pyarrow.table(folder.metrics()), target)
    print(target)


def main(arguments: list[str]) -> None:
    """Parse and run."""
    tyro.cli(export, prog="zoedge export", args=arguments)
