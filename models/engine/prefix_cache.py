"""The keys and values of prompts seen before, so that only what is new in a prompt has to be computed."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from torch import Tensor

from hoptimizer.models.engine.key_values import zeros

# Tokens per page. Smaller pages waste fewer tokens at the end of a common prefix, and cost more bookkeeping.
PAGE = 32


class _Node:
    __slots__ = ("children", "key", "page", "parent")

    def __init__(self, parent: "_Node | None", key: tuple[int, ...], page: int) -> None:
        self.parent, self.key, self.page = parent, key, page
        self.children: dict[tuple[int, ...], _Node] = {}


class PrefixCache:
    """A trie over pages of ``PAGE`` tokens; a node holds the states of its page after the pages above it.

    Prompts of one program share their instructions and demonstrations, and those of later steps of a question also its
    passages; what they share is kept once. The pages that were used longest ago are dropped first.

    All pages lie in one tensor, which takes memory as it fills up. If each page were a tensor of its own, it would lie
    among the short-lived tensors of the forward passes, and malloc could not give the memory between them back.

    Args:
        capacity: the most bytes of states to keep.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._pages: Tensor | None = None  # of shape (pages, layers, 2, heads, PAGE, dim)
        self._unused: list[int] = []
        self._root = _Node(None, (), -1)
        self._recent: OrderedDict[_Node, None] = OrderedDict()

    def clear(self) -> None:
        """Forget all prefixes, and give their memory back."""
        self._pages = None
        self._unused.clear()
        self._root = _Node(None, (), -1)
        self._recent.clear()

    def __len__(self) -> int:
        return len(self._recent)

    def match(self, tokens: list[int]) -> list[Tensor]:
        """The states of the longest known prefix of ``tokens``: for every page a tensor ``(layers, 2, heads, PAGE,
        dim)``, which holds them until the next :meth:`insert`."""
        path = self._path(tokens)
        self._touch(path)
        return [] if self._pages is None else [self._pages[node.page] for node in path]

    def insert(self, tokens: list[int], stop: int, read: Callable[[int, int], Tensor]) -> None:
        """Keep the states of the whole pages among the first ``stop`` tokens, or of as many as there is room for.

        Args:
            tokens: the prompt.
            stop: how many of its tokens have been computed.
            read: gives the states of positions ``start`` to ``stop``; called for pages that are not known yet.
        """
        path = self._path(tokens[:stop])
        self._touch(path)
        starts = range(len(path) * PAGE, stop - stop % PAGE, PAGE)
        while len(self._unused) < len(starts) and len(self._recent) > len(path):
            self._evict()
        node = path[-1] if path else self._root
        for start in starts:
            states = read(start, start + PAGE)
            pages = self._pool(states)
            if not self._unused:  # the prompt itself fills the cache
                break
            child = _Node(node, tuple(tokens[start : start + PAGE]), self._unused.pop())
            pages[child.page] = states
            node.children[child.key] = child
            path.append(child)
            node = child
        self._touch(path)

    def _pool(self, states: Tensor) -> Tensor:
        """The tensor of all pages, which is made for the first page's states."""
        if self._pages is None:
            count = self.capacity // states.nbytes
            self._pages = zeros((count, *states.shape), states.dtype, states.device)
            self._unused = list(reversed(range(count)))
        return self._pages

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
        self._unused.append(node.page)


def common_tokens(prompts: Sequence[list[int]]) -> int:
    """How many first tokens all prompts share.

    Example:
        >>> from hoptimizer.models.engine.prefix_cache import common_tokens
        >>> common_tokens([[5, 8, 9], [5, 8, 2, 1], [5, 8]])
        2
    """
    # What the first and the last prompt in sorted order share, all prompts between them share too.
    ends = min(prompts), max(prompts)
    return next((i for i, (a, b) in enumerate(zip(*ends, strict=False)) if a != b), min(map(len, ends)))
