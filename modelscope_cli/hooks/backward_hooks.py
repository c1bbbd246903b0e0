"""Hooks on the gradients of a backward pass."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from modelscope_cli.hooks.actions import Place
from modelscope_cli.hooks.hooked import Hooked, HookedAt, Pass, Spot, name_of_call
from modelscope_cli.hooks.layers import map_tensors, tensors_in
from modelscope_cli.hooks.session import Call
from modelscope_cli.hooks.sharing import memory_of, node_of

Nodes = frozenset[Node]


class _OnGradients(Hooked):
    def _wrote_to(self, own: Nodes, tensor: Tensor, version: int) -> None:
        for words in self.current.gradients.others(tensor, own):
            self.counted.moved[words] = None

    def _arrive(
        self, spot: Spot, at: Sequence[tuple[str, int]], place: Place, own: Nodes, grad: Tensor
    ) -> Tensor | None:
        """A tensor hook: PyTorch calls it with the gradient and takes what it returns instead."""
        self.counted.fire(*at)
        if self.target.function is not None:
            changed = self.call_function((grad,), grad, spot, partial(self._wrote_to, own))
        else:
            changed = self.act(grad, place, spot)
        return None if changed is grad else changed


class GradHook(_OnGradients):
    """`grad`: changes the gradient that arrives at a layer's outputs, by a tensor hook on each."""

    def __init__(self, target: HookedAt, current: Pass) -> None:
        super().__init__(target, current)
        self._handles: list[RemovableHandle] = []

    def change_inputs(
        self, call: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if call.depth == 0:  # of earlier passes, those that can still go backward stay
            self._handles = [handle for handle in self._handles if handle.hooks_dict_ref() is not None]
        return args, kwargs

    def change_output(self, call: Call, module: nn.Module, inputs: Any, output: Any) -> Any:
        if not self.target.means(call):
            return output
        tensors = tensors_in(output)
        self.check_index(len(tensors), Spot("the output of", name_of_call(call)))
        numbers = iter(range(len(tensors)))
        given = [tensor for _, tensor in tensors_in(inputs)]

        def listen(path: str, tensor: Tensor) -> Tensor:
            n = next(numbers, 0)
            if self.spec.index not in (None, n) or not tensor.requires_grad:
                return tensor
            # A layer that hands on its input has no output of its own, and others read that input, too.
            mine = tensor.view_as(tensor) if any(tensor is one for one in given) else tensor
            spot = Spot("the gradient at the output of", name_of_call(call), path)
            place = self.current.place(module, mine, self.target.number, spot.key)
            arrive = partial(self._arrive, spot, [(call.name, call.index)], place, _nodes(mine))
            self._handles.append(mine.register_hook(arrive))
            return mine

        return map_tensors(output, listen)

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class ParamGradHook(_OnGradients):
    """`param-grad`: changes the gradients of a layer's parameters, those below it included."""

    def __init__(self, target: HookedAt, current: Pass) -> None:
        super().__init__(target, current)
        self._owners: dict[nn.Parameter, list[str]] = {}  # a block and the layer inside may both be meant

    def attach(self, name: str, module: nn.Module) -> Iterable[RemovableHandle]:
        return list(self._attach(name, module)) if name in self.target.names else ()

    def _attach(self, name: str, module: nn.Module) -> Iterator[RemovableHandle]:
        parameters = list(module.named_parameters(prefix=name))
        self.check_index(len(parameters), Spot("the parameters of", name))
        for n, (path, parameter) in enumerate(parameters):
            if self.spec.index in (None, n) and parameter.requires_grad:
                owners = self._owners.setdefault(parameter, [])
                owners.append(name)
                if len(owners) == 1:
                    yield parameter.register_hook(partial(self._arrive_at, parameter, path))

    def _arrive_at(self, parameter: nn.Parameter, path: str, grad: Tensor) -> Tensor | None:
        seed = self.current.seed_for(self.target.number, path)
        place = Place(0 if parameter.ndim else None, False, seed)
        owners = [(name, 0) for name in self._owners[parameter]]
        return self._arrive(Spot("the gradient of", path), owners, place, _nodes(parameter), grad)

    def detach(self) -> None:
        self._owners.clear()


class FullBackwardHook(_OnGradients):
    """`full-backward`: changes the gradients a layer hands on to its inputs, by PyTorch's own module hook."""

    def __init__(self, target: HookedAt, current: Pass) -> None:
        super().__init__(target, current)
        self._calls: dict[str, deque[tuple[Call, Nodes]]] = {}
        self._entered: dict[tuple[str, int], Nodes] = {}
        self._attached: list[tuple[nn.Module, RemovableHandle, dict[str, Any]]] = []

    def attach(self, name: str, module: nn.Module) -> Iterable[RemovableHandle]:
        if name not in self.target.names:
            return ()
        before = dict(vars(module))
        handle = module.register_full_backward_hook(partial(self._fire, name))
        written = {key: was for key, was in before.items() if vars(module)[key] is not was}
        self._attached.append((module, handle, written))
        return [handle]

    def change_inputs(
        self, call: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if call.depth == 0:
            self._forget()
        if call.name in self.target.names:
            self._entered[call.name, call.index] = _nodes((args, kwargs))
        return args, kwargs

    def change_output(self, call: Call, module: nn.Module, inputs: Any, output: Any) -> Any:
        if call.name in self.target.names:
            own = self._entered.get((call.name, call.index), frozenset()) | _nodes(output)
            self._calls.setdefault(call.name, deque()).append((call, own))
        return output

    def _fire(self, name: str, module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
        if (
            name not in self._calls
        ):  # PyTorch calls it also when the session is over, for a forward made in it
            return None
        # The calls of a layer are left in the reverse of the order they were made in; also in a second backward
        # pass through the same graph.
        call, own = self._calls[name][-1]
        self._calls[name].rotate()
        if not self.target.means(call):
            return None
        spot = Spot("the gradient at the input of", name_of_call(call))
        self.counted.fire((call.name, call.index))
        if not tensors_in(grad_input):
            self.counted.left_alone = f"{spot}: its inputs do not take gradients"
        if self.target.function is not None:
            arguments = (module, grad_input, grad_output)
            moved = partial(self._wrote_to_input, own, spot, grad_input)
            changed = self.call_function(arguments, grad_input, spot, moved)
        else:

            def place(tensor: Tensor, n: int) -> Place:
                return self.current.place(module, tensor, self.target.number, spot.label, n)

            changed = self.act_on_each(grad_input, spot, place)
        return None if changed is grad_input else changed

    def _wrote_to_input(self, own: Nodes, spot: Spot, grad_input: Any, tensor: Tensor, version: int) -> None:
        self._wrote_to(own, tensor, version)
        twins = [path for path, one in tensors_in(grad_input) if memory_of(one) == memory_of(tensor)]
        for path in twins[1:]:  # an addition hands one gradient to both of its inputs
            self.counted.moved[str(replace(spot, path=path))] = None

    def _forget(self) -> None:
        self._calls.clear()
        self._entered.clear()

    def detach(self) -> None:
        self._forget()
        for module, handle, written in self._attached:
            if (
                not handle.hooks_dict_ref()
            ):  # PyTorch notes that a layer has such hooks, and never that it has none
                vars(module).update(written)
        self._attached.clear()


def _nodes(value: Any) -> Nodes:
    return frozenset(node for _, tensor in tensors_in(value) if (node := node_of(tensor)) is not None)
