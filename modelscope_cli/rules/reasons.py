"""Say why each rule matters and how to silence it, for `modelscope rules CODE`."""

# By code: the consequences of the fault that the rule's own sentence describes.
WHY = {
    "MS001": "a pickle is a program: torch.load with weights_only=False runs what it names, with your rights and "
    "on your files",
    "MS002": "what is not known to be harmless may do anything once the file is loaded with weights_only=False",
    "MS101": "every value that is computed from it is NaN or infinite too, up to the prediction",
    "MS102": "the layer divides by almost zero, or takes the root of a negative number: its channel explodes "
    "or is NaN",
    "MS103": "a network is initialised for inputs near mean 0 and standard deviation 1; other inputs saturate the "
    "first layers, kill ReLUs, and make one learning rate too high for one layer and too low for another",
    "MS201": "NaN spreads to everything after it; look at the first layer that produces it",
    "MS202": "a channel that never fires gets no gradient, so it never comes back, and its parameters are wasted",
    "MS203": "a unit that hardly ever fires hardly ever learns; the layer has far less capacity than it costs",
    "MS204": "where the curve is flat the derivative is almost zero, and the layers before it do not learn",
    "MS205": "a signal this small is lost in rounding, and the layers after it see a constant",
    "MS206": "signals that shrink or grow with depth make gradients do the same, and training slow or impossible",
    "MS207": "in eval mode the layer normalises by statistics that do not match this data, so predictions fail",
    "MS301": "one step of any optimizer with such a gradient makes the weights NaN for good",
    "MS302": "the weights before that place hardly change, however long the training lasts",
    "MS303": "one step throws these weights far off; the loss jumps or becomes NaN",
    "MS401": "what never runs is stored, moved and trained for nothing, and is often a layer that was forgotten in "
    "forward",
    "MS402": "these parameters stay as they were initialised, while everything looks as if they were trained",
    "MS501": "it is your limit: a model that outgrows it no longer fits where it is meant to run",
    "MS502": "it is your limit: a model that outgrows it is too slow where it is meant to run",
    "MS503": "it is your limit: a model that outgrows it runs out of memory where it is meant to run",
    "MS505": "it is your limit: a step that outgrows it runs out of memory where the model is to be trained",
    "MS504": "what reads the output expects this shape, and fails or silently means something else",
    "MS601": "a model that predicts the same for everything has not learnt, or is given inputs unlike its "
    "training data",
    "MS602": "a result that changes from run to run cannot be compared, debugged or tested",
    "MS603": "what was trained is not what is used: the validation in eval mode measures another function",
    "MS604": "such a model predicts the same whatever it is shown; nothing it was trained for is left",
    "MS801": "each run meets them again: it stops there, or continues with fewer images than you think",
    "MS802": "they count twice in training and in every figure, and one of them may have another label",
    "MS803": "they count twice as identical ones do, and a random split puts them on both sides",
    "MS804": "accuracy on images that were trained on says nothing about new images",
    "MS805": "the model is taught two things about one image, and at least one of them is wrong",
    "MS806": "a small image is enlarged until its detail is invented; a huge one slows every run",
    "MS807": "resizing squeezes it and cropping loses most of it, so the model does not see what you see",
    "MS808": "the model sees hardly more than noise, and learns its label by heart",
    "MS809": "there is nothing to see in it, so that nothing but its label can be learnt",
    "MS810": "the model sees shapes without texture or edges; if one class is blurred more, the model learns the "
    "blur",
    "MS701": "from then on every weight is NaN, and the rest of the run is wasted",
    "MS702": "NaN spreads to everything after the layer, and through the gradients to everything before it",
    "MS703": "one step with such a gradient makes the weights NaN for good",
    "MS704": "the model is worse than it was; what it has learnt is being lost",
    "MS705": "a ReLU that outputs only zeros gets no gradient, so it does not come back by itself",
    "MS706": "values that keep growing end in overflow, and make every layer after them less stable",
    "MS707": "these weights do not learn, however long the run lasts",
    "MS708": "one step throws these weights far off; the loss jumps or becomes NaN",
    "MS709": "each step overwrites what the ones before it have learnt",
    "MS710": "the run ends with the weights it began with: its time is wasted",
    "MS711": "the run ends with the very weights it began with",
    "MS712": "these parameters stay as they were initialised, and the rest has to make up for it",
    "MS713": "each step follows the sum of all gradients so far, which points less and less to where the loss "
    "falls",
    "MS714": "the step finds no gradients, and changes nothing",
    "MS715": "the layers that no gradient reaches stay as they were initialised, while everything looks trained",
    "MS716": "what is never used is stored, moved and stepped for nothing, and is often a layer forgotten in "
    "forward",
    "MS717": "scales and biases alone can hardly learn a new task",
    "MS718": "dropout does nothing, and batch norm uses statistics that never follow the weights",
    "MS719": "most of the run changes nothing: its time is wasted",
    "MS720": "a softmax of a softmax is nearly flat: gradients are small, and the loss cannot get near zero",
    "MS721": "what is cut off can never be predicted with confidence, and passes no gradient",
    "MS722": "each step makes the model worse on purpose",
    "MS723": "the step grows with the size of the batch, and a learning rate that was right is far too high",
    "MS724": "every prediction is pulled towards the mean of all targets",
    "MS725": "a model that always predicts the same has a perfect loss",
    "MS726": "the first layer's gradients are as large as its input, and one step throws its weights far off",
    "MS727": "the best it can learn is how often each label occurs",
    "MS728": "from then on every weight is NaN, and the rest of the run is wasted",
    "MS729": "units that compute the same get the same gradient: the layer is as good as one unit",
    "MS730": "the layers before it get almost no gradient and do not learn",
    "MS731": "the layer has far less capacity than it costs",
    "MS732": "a sample normalised by itself is the same for every input, and evaluation sees another function",
    "MS733": "one such step makes the weights NaN for good",
    "MS734": "several devices do the work of one",
    "MS735": "whatever the reason, this run does not learn",
    "MS736": "the rare classes are never found, while the accuracy looks high",
    "MS737": "the steps change a model that nobody uses",
    "MS738": "such a loss falls forever while the predictions do not improve",
    "MS739": "activations saturate or explode, and the first steps only undo the initialisation",
    "MS740": "by the time it reaches the first layers, the gradient has shrunk to nothing",
    "MS741": "the direction of the steps is right, and their size is nothing: the run ends where it began",
    "MS742": "what counts is what it does on images it was not trained on, and there it does nothing",
    "MS743": "dropout blurs the result, and the validation images move the running statistics of batch norm",
    "MS744": "the weights are driven to zero, and with them the signal and the gradients",
    "MS745": "each step is as many times too large, often 65,536 times",
    "MS746": "each rank trains a model of its own, and what is saved is only one of them",
    "MS747": "a part of the model stays as it was made, and the rest learns around it",
    "MS748": "a share of the augmentation is not there: several samples get the same, in each worker or epoch",
    "MS749": "the weight stays at its first values, whatever the loss of the rest does",
    "MS755": "nothing can be learnt from an input that has no way to the output",
    "MS756": "it has learnt the mean of the targets at most, and nothing about the single sample",
    "MS757": "a loss of zero is reached by telling nothing apart, and what was to be embedded is lost",
    "MS758": "the run ends at another learning rate than the one it was planned for",
    "MS761": "momentum and Adam's averages smooth nothing, and Adam's steps are those of a sign",
    "MS762": "the steps do not follow the data: what is learnt is one batch, or nothing",
    "MS763": "what is validated and kept is the model before its training",
    "MS759": "the loss is low for the wrong reason: in use the others, or the future, are not there",
    "MS760": "what the validation says is not about the model in use, and the best checkpoint is chosen by it",
    "MS764": "hardly any of a sample reaches the layers behind it, and what does is scaled up as many times",
    "MS771": "an accelerator that waits is paid for and does nothing; the run takes that much longer",
    "MS772": "most of the time is spent on looking at the model, not on making it better",
    "MS773": "what is compiled or started once pays off only in a longer run",
}
_BUDGETS, _TRAINING = "MS5", "MS7"


def how_to_silence(code: str, name: str) -> str:
    """Return what to do if the finding is intended."""
    if code.startswith(_TRAINING):
        return "watch and train fail only with --fail-on, and --fail-on error lets warnings pass"
    if code.startswith(_BUDGETS):
        return f"leave out --{name}: a budget that nobody has set is not judged"
    if code == "MS201":
        return (
            "--baseline known.json --update-baseline accepts today's findings as known; a forward pass that is not "
            "finite fails whatever is selected or ignored"
        )
    return (
        f'--ignore {code}, or ignore = ["{code}"] in [tool.modelscope] of pyproject.toml; '
        "--baseline known.json --update-baseline accepts today's findings as known"
    )
