"""Pages: a finished run, or a folder of runs, as one HTML file that needs neither network nor server."""

from crfl_reports.pages.report import NAME, write_report

__all__ = ["NAME", "write_report"]
