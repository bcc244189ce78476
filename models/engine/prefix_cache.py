"""The keys and values of prompts seen before, so that only what is new in a prompt has to be computed."""

from collections import OrderedDict
from collections.abc import Callable

from torch import Tensor

# Tokens per page. Smaller pages waste fewer tokens at the end of a common prefix, and cost more bookkeeping.
PAGE = 32


class _Node:
    __slots__ = ("children", "key", "parent", "states")

    def __init__(self, parent: "_Node | None", key: tuple[int, ...], states: Tensor | None) -> None:
        self.parent, self.key, self.states = parent, key, states
        self.children: dict[tuple[int, ...], _Node] = {}


class PrefixCache:
    """A trie over pages of ``PAGE`` tokens; a node holds the states of its page after the pages above it.

    Prompts of one program share their instructions and demonstrations, and those of later steps of a question also its
    passages; what they share is kept once. The pages that were used longest ago are dropped first.

    Args:
        capacity: the most bytes of states to keep.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._size = 0
        self._root = _Node(None, (), None)
        self._recent: OrderedDict[_Node, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._recent)

    def match(self, tokens: list[int]) -> list[Tensor]:
        """The states of the longest known prefix of ``tokens``: for every page a tensor ``(layers, 2, heads, PAGE,
        dim)``."""
        path = self._path(tokens)
        self._touch(path)
        return [node.states for node in path if node.states is not None]

    def insert(self, tokens: list[int], stop: int, read: Callable[[int, int], Tensor]) -> None:
        """Keep the states of the whole pages among the first ``stop`` tokens.

        Args:
            tokens: the prompt.
            stop: how many of its tokens have been computed.
            read: gives the states of positions ``start`` to ``stop``; called for pages that are not known yet.
        """
        path = self._path(tokens[:stop])
        node = path[-1] if path else self._root
        for start in range(len(path) * PAGE, stop - stop % PAGE, PAGE):
            key = tuple(tokens[start : start + PAGE])
            child = _Node(node, key, read(start, start + PAGE))
            node.children[key] = child
            path.append(child)
            self._size += _bytes(child)
            node = child
        self._touch(path)
        while self._size > self.capacity and self._recent:
            self._evict()

    def _path(self, tokens: list[int]) -> list[_Node]:
        path, node = [], self._root
        for start in range(0, len(tokens) - PAGE + 1, PAGE):
            child = node.children.get(tuple(tokens[start : start + PAGE]))
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def _touch(self, path: list[_Node]) -> None:
        # Deepest first, so that a node is always more recent than the ones below it, and the oldest is a leaf.
        for node in reversed(path):
            self._recent[node] = None
            self._recent.move_to_end(node)

    def _evict(self) -> None:
        node, _ = self._recent.popitem(last=False)
        if node.parent is not None:
            del node.parent.children[node.key]
        self._size -= _bytes(node)


def _bytes(node: _Node) -> int:
    return 0 if node.states is None else node.states.nbytes
