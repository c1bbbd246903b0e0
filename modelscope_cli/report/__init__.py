"""The presentation of results: sheets and formats, numbers and labels, figures, pages and output files."""
