"""The names of the files that `attack` leaves behind."""

from modelscope_cli.report.reading import PAGE

BEFORE, ADVERSARIAL, PERTURBATION = "before.png", "adversarial.png", "perturbation.png"
COMPARISON, LOSS, REPORT = "comparison.png", "loss.png", "report.json"
FILES = (BEFORE, ADVERSARIAL, PERTURBATION, COMPARISON, LOSS, REPORT, PAGE)
