"""Say why each rule matters and how to silence it, for `modelscope rules CODE`."""

# By code: the consequences of the fault that the rule's own sentence describes.
WHY = {
    "MS001": "a pickle is a program: torch.load with weights_only=False calls what it names, with your "
    "permissions and on your files",
    "MS002": (
        "a function that is not known to be harmless can do anything once the file is loaded with "
        "weights_only=False"
    ),
    "MS101": "every value computed from it is NaN or infinite too, including the prediction",
    "MS102": "the layer divides by almost zero, or takes the root of a negative number: its channel explodes "
    "or is NaN",
    "MS103": "a network is initialised for inputs near mean 0 and standard deviation 1; other inputs saturate the "
    "first layers, kill ReLUs, and make one learning rate too high for one layer and too low for another",
    "MS201": "NaN spreads to everything after it; look at the first layer that produces it",
    "MS202": "a channel that never fires gets no gradient, so it never recovers, and its parameters are wasted",
    "MS203": "a unit that hardly ever fires hardly ever learns, so most of the layer's capacity is unused",
    "MS204": "where the curve is flat the derivative is almost zero, and the layers before it do not learn",
    "MS205": "a signal this small is lost in rounding, and the layers after it see a constant",
    "MS206": "signals that shrink or grow with depth make gradients do the same, and training slow or impossible",
    "MS207": (
        "in eval mode the layer normalises by statistics that do not match this data, so predictions are "
        "wrong"
    ),
    "MS301": "one optimizer step with such a gradient makes the weights NaN permanently",
    "MS302": "the weights before it hardly change, however long the training lasts",
    "MS303": "a single step changes these weights far too much; the loss jumps or becomes NaN",
    "MS401": "a layer that never runs only costs memory, and often it was forgotten in forward",
    "MS402": "these parameters keep their initial values, although the training seems to work",
    "MS501": "it is your limit: a larger model no longer fits on the target device",
    "MS502": "it is your limit: a more expensive model is too slow on the target device",
    "MS503": "it is your limit: a larger model runs out of memory on the target device",
    "MS505": "it is your limit: a larger training step runs out of memory where the model is trained",
    "MS504": "the code that reads the output expects this shape, and fails or misreads it",
    "MS601": "a model that predicts the same for everything has not learnt, or receives inputs unlike its "
    "training data",
    "MS602": "a result that changes from run to run cannot be compared, debugged or tested",
    "MS603": "the model in use is not the one that was trained: eval mode computes another function",
    "MS604": "such a model predicts the same for every image; its training is lost",
    "MS801": "every run stops at them, or continues with fewer images than you think",
    "MS802": "they count twice in training and in every metric, and one of them may have another label",
    "MS803": "they count twice like identical images, and a random split puts them into both sets",
    "MS804": "accuracy on training images does not measure accuracy on new images",
    "MS805": "the model is trained on two labels for one image, and at least one of them is wrong",
    "MS806": "an enlarged small image has no real detail; a huge one slows every run",
    "MS807": "resizing distorts it and cropping loses most of it, so the model sees another image than you do",
    "MS808": "the model sees hardly more than noise, and memorises its label",
    "MS809": "it shows nothing, so the model can only memorise its label",
    "MS810": "the model sees shapes without texture or edges; if one class is blurred more, the model learns the "
    "blur",
    "MS811": "a model cannot predict a class without training images, and the accuracy does not cover a class "
    "without validation images",
    "MS701": "from then on all weights are NaN, and the rest of the run is wasted",
    "MS702": "NaN spreads to everything after the layer, and through the gradients to everything before it",
    "MS703": "one step with such a gradient makes the weights NaN permanently",
    "MS704": "the model gets worse: it loses what it has learnt",
    "MS705": "a ReLU that outputs only zeros gets no gradient, so it rarely recovers",
    "MS706": "values that keep growing overflow in the end, and destabilise every later layer",
    "MS707": "these weights do not learn, however long the run lasts",
    "MS708": "a single step changes these weights far too much; the loss jumps or becomes NaN",
    "MS709": "each step overwrites what earlier steps have learnt",
    "MS710": "the run ends with almost the weights it began with: its time is wasted",
    "MS711": "the run ends with exactly the weights it began with",
    "MS712": "these parameters keep their initial values, and the other layers have to compensate",
    "MS713": "each step follows the sum of all past gradients, which is less and less a direction of descent",
    "MS714": "the step finds no gradients, and changes nothing",
    "MS715": "layers without a gradient keep their initial values, although the training seems to work",
    "MS716": "an unused layer only costs memory, and often it was forgotten in forward",
    "MS717": "scales and biases alone can hardly learn a new task",
    "MS718": "dropout is off, and batch norm normalises by statistics that are never updated",
    "MS719": "most of the run changes nothing: its time is wasted",
    "MS720": "a softmax of a softmax is nearly flat: gradients are small, and the loss cannot get near zero",
    "MS721": "clipped values cannot be predicted with confidence, and pass no gradient",
    "MS722": "each step increases the criterion that it should decrease",
    "MS723": "the step grows with the batch size, so a usual learning rate is far too high",
    "MS724": "every prediction is pulled towards the mean of all targets",
    "MS725": "a model that always predicts the same has a perfect loss",
    "MS726": (
        "the gradients of the first layer scale with its input, so one step changes its weights far too much"
    ),
    "MS727": "the model can at best learn how often each label occurs",
    "MS728": "from then on all weights are NaN, and the rest of the run is wasted",
    "MS729": "units that compute the same get the same gradient: the whole layer is worth one unit",
    "MS730": "the layers before it get almost no gradient and do not learn",
    "MS731": "most of the layer's capacity is unused",
    "MS732": "a channel normalised over one value is constant, and evaluation computes another function",
    "MS733": "one such step makes the weights NaN permanently",
    "MS734": "several devices do the work of one",
    "MS735": "this run does not learn, whatever the cause",
    "MS736": "the rare classes are never found, while the accuracy looks high",
    "MS737": "the steps change a model that is not used",
    "MS738": "such a loss falls without limit while the predictions do not improve",
    "MS739": "activations saturate or explode, and the first steps are spent undoing the initialisation",
    "MS740": "the gradient is almost zero when it reaches the first layers",
    "MS741": "each step has the size of the clip and not that of its gradient: where it is next to nothing the run "
    "ends where it began, and gradients clipped while they are scaled shrink further as the scale grows",
    "MS742": "the model has to work on images it was not trained on, and there it does not",
    "MS743": (
        "dropout makes the result noisy, and the validation images change the running statistics of batch "
        "norm"
    ),
    "MS744": "the weights go to zero, and with them activations and gradients",
    "MS745": "each step is too large by the factor of the scaler, often 65,536",
    "MS746": "each rank trains its own model, and only one of them is saved",
    "MS747": "part of the model keeps its initial weights, and the other layers have to work around it",
    "MS748": (
        "some of the augmentation is missing: several samples get the same random values, in each worker or "
        "epoch"
    ),
    "MS749": "the weight keeps its initial values, even if the loss falls",
    "MS755": "the model cannot learn from an input that does not affect the output",
    "MS756": "the model has at best learnt the mean of the targets, and nothing about a single sample",
    "MS757": "the loss is lowest when all samples are mapped to one point, which tells none from another",
    "MS758": "at the end of the run the schedule has hardly changed the learning rate",
    "MS761": (
        "momentum and Adam's averages have no effect, and Adam's steps only depend on the sign of the "
        "gradient"
    ),
    "MS762": "the steps do not depend on the data: the model learns one batch, or nothing",
    "MS763": "the model that is validated and saved is the untrained one",
    "MS759": "the model reads what it is to predict, or other samples: in use neither is there, and it fails",
    "MS760": "the validation does not measure the model in use, and the best checkpoint is chosen by it",
    "MS764": "hardly any of a sample reaches the layers after it, and the rest is scaled up by 1 / (1 - p)",
    "MS771": "a device that waits does nothing, and the run takes that much longer",
    "MS772": "most of the time goes into measuring the model instead of training it",
    "MS773": "compiling and starting workers only pay off in a longer run",
}
_BUDGETS, _TRAINING = "MS5", "MS7"


def how_to_silence(code: str, name: str) -> str:
    """Return what to do if the finding is intended."""
    if code.startswith(_TRAINING):
        return "watch and train fail only with --fail-on, and --fail-on error lets warnings pass"
    if code.startswith(_BUDGETS):
        return f"leave out --{name}: a budget that is not set is not judged"
    if code == "MS201":
        return (
            "--baseline known.json --update-baseline accepts today's findings as known; a forward pass that "
            "is not finite always fails"
        )
    return (
        f'--ignore {code}, or ignore = ["{code}"] in [tool.modelscope] of pyproject.toml; '
        "--baseline known.json --update-baseline accepts today's findings as known"
    )
