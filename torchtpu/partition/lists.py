"""Ops on lists of tensors, taken apart and sorted by position in the list.

An optimizer's step is ten ops over all parameters; afterwards it is what each parameter goes
through, one parameter after the other, so that the parameters of a layer are a period.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torchtpu.partition.graph import references
from torchtpu.partition.turning import Element, Elements
from torchtpu.program import Node, Program, Ref, renumbered

_LISTS = "aten::_foreach_"
_ONE_FOR_ALL = ("add", "div", "mul")  # their Tensor overload takes a tensor of no dims

_Numbered = tuple[Node, Sequence[int]]  # a node and the numbers of its outputs


def taken_apart(program: Program) -> Elements:
    """Return a program whose list ops have one element each.

    Elements of lists of numbers are further inputs of it, after those of the program.
    """
    elements: dict[Element, int] = {}
    nodes: list[_Numbered] = []
    numbers = list(range(len(program.inputs)))
    fresh = iter(range(len(numbers), 1 << 62))
    for stretch in _stretches(program):
        pieces: list[_Numbered] = []
        for node in stretch:
            given = [next(fresh) for _ in range(node.outputs)]
            renamed = renumbered(node, numbers)
            numbers.extend(given)
            if _is_list(node, program):
                for element in _elements(node, program):
                    if element not in elements:
                        elements[element] = next(fresh)
                pieces.extend(_pieces(renamed, given, elements))
            else:
                pieces.append((renamed, given))
        nodes.extend(_sorted(pieces))
    return _joined(program, nodes, numbers, elements)


def _stretches(program: Program) -> Iterator[list[Node]]:
    """Yield the nodes in groups: list ops with the views among them, and single others."""
    group: list[Node] = []
    for node in program.nodes:
        if _is_list(node, program) or (group and node.op == "view"):
            group.append(node)
            continue
        if group:
            yield group
            group = []
        yield [node]
    if group:
        yield group


def _is_list(node: Node, program: Program) -> bool:
    """Tell whether a node does the same to every position of its lists, and to two or more."""
    if not node.op.startswith(_LISTS) or node.outputs < 2:
        return False
    name, _, overload = node.op.removeprefix(_LISTS).partition(".")
    one_for_all = overload == "Tensor" and name.rstrip("_") in _ONE_FOR_ALL
    return all(
        len(value) == node.outputs
        if type(value) is tuple
        else type(value) is not Ref or one_for_all or value.index < len(program.inputs)
        for _, value in node.kwargs
    )


def _elements(node: Node, program: Program) -> list[Element]:
    """Return the elements of inputs that are lists of numbers, one for each position."""
    given = [v.index for _, v in node.kwargs if type(v) is Ref and v.index < len(program.inputs)]
    lists = [i for i in given if len(program.inputs[i].shape) == 1]
    return [Element(i, position) for i in lists for position in range(node.outputs)]


def _pieces(node: Node, given: Sequence[int], elements: dict[Element, int]) -> Iterator[_Numbered]:
    types = node.args[0]
    for position, number in enumerate(given):
        kwargs = []
        for name, value in node.kwargs:
            if type(value) is tuple:
                value = (value[position],)
            elif type(value) is Ref:
                value = Ref(elements.get(Element(value.index, position), value.index))
            kwargs.append((name, value))
        one = replace(types, outputs=(types.outputs[position],))
        yield Node(node.op, node.fn, (one, *node.args[1:]), tuple(kwargs), 1), [number]


def _sorted(pieces: Sequence[_Numbered]) -> list[_Numbered]:
    """Bring together the pieces that depend on each other, in the order of the first of them."""
    made = {number: at for at, (_, given) in enumerate(pieces) for number in given}
    group = list(range(len(pieces)))

    def root(at: int) -> int:
        while group[at] != at:
            group[at] = at = group[group[at]]
        return at

    for at, (node, _) in enumerate(pieces):
        for number in references((node.args, node.kwargs)):
            if number in made:
                low, high = sorted((root(made[number]), root(at)))
                group[high] = low
    order = sorted(range(len(pieces)), key=lambda at: (root(at), at))
    return [pieces[at] for at in order]


def _needed(nodes: Sequence[_Numbered], wanted: set[int]) -> list[_Numbered]:
    kept = []
    for node, given in reversed(nodes):
        if not wanted.isdisjoint(given):
            wanted.update(references((node.args, node.kwargs)))
            kept.append((node, given))
    return kept[::-1]


def _joined(
    program: Program,
    nodes: Sequence[_Numbered],
    numbers: Sequence[int],
    elements: dict[Element, int],
) -> Elements:
    """Number the values in the order of the nodes; what no output needs is left out."""
    nodes = _needed(nodes, {numbers[i] for i in program.outputs})
    count = len(program.inputs)
    final = {number: at for at, number in enumerate((*range(count), *elements.values()))}
    for _, given in nodes:
        for number in given:
            final[number] = len(final)
    ordered = tuple(renumbered(node, final) for node, _ in nodes)
    types = tuple(replace(program.inputs[e.array], shape=(1,)) for e in elements)
    outputs = tuple(final[numbers[i]] for i in program.outputs)
    apart = Program((*program.inputs, *types), ordered, outputs, program.donated)
    return Elements(apart, count, tuple(elements))
