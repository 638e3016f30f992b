"""A rax in memory, with real nodes that are split and merged: what storage/trees/rax.py is held to.

Written from the description of Redis' rax: the walk, the cases of a split,

    inserting into "annibale"     the nodes afterwards
    -------------------------     -------------------------------------
    ciao                          [ac] -> "nnibale", "iao"
    ago                           [a] -> [gn] -> [o], "ibale"
    annienter                     "anni" -> [be] -> "ale", "nter"
    annibaie                      "anniba" -> [il] -> [e], [e]
    annibali                      "annibal" -> [ei] -> [], []
    a                             [a] -> "nnibale"  (a key)
    anni                          "anni" -> "bale"  (a key)

and the merge after a remove, in two forms. ``merges="all"`` is what the description promises:
wherever a key or a branch has gone, the chain it cut becomes one node again. ``merges="redis"``
is what raxRemove does: it looks at h->size, which for a compressed node is its length and not
the number of its children, and it leaves every node alone that is a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

NodeView = tuple[bytes, bytes, bytes, bool, bool]  # path, label, children, key?, compressed?


class Node:
    """As raxNode: one child if compressed, else one child for each of its chars."""

    def __init__(self, chars: bytes = b"", children: list[Node] | None = None) -> None:
        self.chars = chars
        self.children = children or []
        self.is_compressed = len(chars) > len(self.children)
        self.value: bytes | None = None  # of the key that ends here, if one does

    @property
    def is_key(self) -> bool:
        return self.value is not None

    @property
    def size(self) -> int:
        return len(self.chars)

    @property
    def passes_through(self) -> bool:
        """Neither a leaf nor a branch."""
        return len(self.children) == 1


class RaxInMemory:
    def __init__(self, merges: str = "all") -> None:
        self.merges = merges
        self.head = Node()
        self.numele = 0
        self.numnodes = 1

    def low_walk(self, key: bytes) -> tuple[int, Node, int, list[Node]]:
        """How many bytes matched, the node it stopped at, how far inside, the nodes above."""
        node, at, matched, above = self.head, 0, 0, []
        while node.size and matched < len(key):
            way = 0
            if node.is_compressed:
                at = 0
                while at < node.size and matched < len(key) and node.chars[at] == key[matched]:
                    at += 1
                    matched += 1
                if at != node.size:
                    break
            else:
                way = node.chars.find(key[matched])
                if way < 0:
                    break
                matched += 1
            above.append(node)
            node, at = node.children[way], 0
        return matched, node, at if node.is_compressed else 0, above

    def find(self, key: bytes) -> bytes | None:
        matched, node, split, _ = self.low_walk(key)
        return node.value if matched == len(key) and split == 0 else None

    def insert(self, key: bytes, value: bytes) -> None:
        at, node, split, _ = self.low_walk(key)
        if at < len(key) and node.is_compressed:
            node = self._part(node, split)
        elif split:
            node = self._cut(node, split)
        while at < len(key):
            child = Node()
            if node.size == 0 and len(key) - at > 1:
                node.chars, node.children, node.is_compressed = key[at:], [child], True
                at = len(key)
            else:
                way = sum(char < key[at] for char in node.chars)
                node.chars = node.chars[:way] + key[at : at + 1] + node.chars[way:]
                node.children.insert(way, child)
                at += 1
            self.numnodes += 1
            node = child
        self.numele += not node.is_key
        node.value = value

    def _part(self, node: Node, split: int) -> Node:
        """Make room in a compressed node for another byte at ``split``: the branch to be."""
        rest = node.children[0]
        if split + 1 < node.size:
            rest = Node(node.chars[split + 1 :], [rest])
            self.numnodes += 1
        byte = node.chars[split : split + 1]
        if split == 0:
            node.chars, node.children, node.is_compressed = byte, [rest], False
            return node
        branch = Node(byte, [rest])
        self.numnodes += 1
        node.chars, node.children, node.is_compressed = node.chars[:split], [branch], split > 1
        return branch

    def _cut(self, node: Node, split: int) -> Node:
        """Cut a compressed node in two at ``split``: the second, where a key will end."""
        rest = Node(node.chars[split:], [node.children[0]])
        self.numnodes += 1
        node.chars, node.children, node.is_compressed = node.chars[:split], [rest], split > 1
        return rest

    def remove(self, key: bytes) -> None:
        matched, node, split, above = self.low_walk(key)
        if matched != len(key) or split or not node.is_key:
            return
        node.value = None
        self.numele -= 1
        if node.size == 0:
            gone = None
            while node is not self.head:
                gone = node
                self.numnodes -= 1
                node = above.pop()
                if node.is_key or not node.passes_through:
                    break
            if gone is None:
                return
            self._drop_child(node, gone)
            may_merge = node.size == 1 and (self.merges == "all" or not node.is_key)
        else:
            may_merge = node.passes_through if self.merges == "all" else node.size == 1
        if may_merge:
            self._merge(node, above)

    def _drop_child(self, node: Node, child: Node) -> None:
        if node.is_compressed:
            node.chars, node.children, node.is_compressed = b"", [], False
            return
        way = next(i for i, other in enumerate(node.children) if other is child)
        node.chars = node.chars[:way] + node.chars[way + 1 :]
        del node.children[way]

    def _merge(self, node: Node, above: list[Node]) -> None:
        """Up to the head of the chain that ``node`` is in, then down it, one node of all."""
        while above and above[-1].passes_through and not node.is_key:
            if above[-1].is_key and self.merges == "redis":
                break
            node = above.pop()
        child = node.children[0]
        while child.passes_through and not child.is_key:
            node.chars += child.chars
            node.children = child.children
            node.is_compressed = True
            self.numnodes -= 1
            child = node.children[0]

    def nodes(self) -> Iterator[NodeView]:
        """Every node, parents first."""
        pending = [(b"", self.head)]
        while pending:
            path, node = pending.pop()
            children = node.chars[: len(node.children)]
            yield path, node.chars, children, node.is_key, node.is_compressed
            if node.is_compressed:
                pending.append((path + node.chars, node.children[0]))
            else:
                ways = [path + node.chars[i : i + 1] for i in range(node.size)]
                pending += reversed(list(zip(ways, node.children, strict=True)))


def without_cuts(nodes: Iterable[NodeView]) -> list[NodeView]:
    """The nodes with every chain that is cut in two put together again."""
    whole: list[NodeView] = []
    for path, label, children, is_key, is_compressed in nodes:
        if whole and not is_key and len(children) == 1 and len(whole[-1][2]) == 1:
            above = whole.pop()  # parents come first, so the only child follows at once
            whole.append((above[0], above[1] + label, above[2], above[3], True))
        else:
            whole.append((path, label, children, is_key, is_compressed))
    return whole
