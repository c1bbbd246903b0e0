"""Hooks on what goes into a layer and what comes out of it."""

from functools import partial
from typing import Any

from torch import Tensor, nn

from modelscope_cli.hooks.actions import Place
from modelscope_cli.hooks.hooked import Hooked, Spot, name_of_call
from modelscope_cli.hooks.session import Call

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


class _OnValues(Hooked):
    """A hook on values; of a function of the user's it finds out who else reads what it wrote to in place."""

    def _change(
        self, value: Any, call: Call, module: nn.Module, words: str, arguments: tuple[Any, ...]
    ) -> Any:
        spot = Spot(words, name_of_call(call))
        self.counted.fire((call.name, call.index))
        if self.target.function is not None:
            return self.call_function(arguments, value, spot, partial(self._wrote_to, call))

        def place(tensor: Tensor, n: int) -> Place:
            return self.current.place(module, tensor, self.target.number, spot.label, n)

        return self.act_on_each(value, spot, place)

    def _wrote_to(self, call: Call, tensor: Tensor, version: int) -> None:
        own = f"{'the input' if self.spec.kind == 'pre' else 'the output'} of {name_of_call(call)}"
        for words in self.current.values.others(name_of_call(call), tensor, version):
            if words != own:
                self.counted.moved[words] = None


class PreHook(_OnValues):
    """`pre`: changes what a layer is called with."""

    def change_inputs(
        self, call: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Inputs:
        if not self.target.means(call):
            return args, kwargs
        if self.target.function is not None:  # PyTorch's own signature knows no keywords
            return self._change(args, call, module, "the input of", (module, args)), kwargs
        named = {**{str(n): one for n, one in enumerate(args)}, **kwargs}
        changed = self._change(named, call, module, "the input of", ())
        return tuple(changed[str(n)] for n in range(len(args))), {name: changed[name] for name in kwargs}


class ForwardHook(_OnValues):
    """`forward`: changes what a layer gives."""

    def change_output(self, call: Call, module: nn.Module, inputs: Inputs, output: Any) -> Any:
        if not self.target.means(call):
            return output
        return self._change(output, call, module, "the output of", (module, inputs[0], output))
