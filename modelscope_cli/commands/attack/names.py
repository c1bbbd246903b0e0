"""The names of the files that `attack` leaves behind."""

from modelscope_cli.report.reading import RESULT_FILES

BEFORE, ADVERSARIAL, PERTURBATION = "before.png", "adversarial.png", "perturbation.png"
COMPARISON, LOSS = "comparison.png", "loss.png"
FILES = (BEFORE, ADVERSARIAL, PERTURBATION, COMPARISON, LOSS, *RESULT_FILES)
