"""The report: built as plain data, rendered to HTML, text or a PNG."""

from gradwatch.report.build import Report, build_report
from gradwatch.report.html import render_html
from gradwatch.report.overview_png import write_overview

__all__ = ["Report", "build_report", "render_html", "write_overview"]
