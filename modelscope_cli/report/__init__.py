"""How results look: sheets and their formats, numbers and labels, figures and pages, and the files they go to."""
