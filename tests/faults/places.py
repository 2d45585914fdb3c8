"""The places of the package that touch a disk, a process, a device or a thread, found by reading its source."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[2] / "mjtorch"
# Of whatever it is called.
METHODS = set(
    "read_text write_text read_bytes write_bytes mkdir unlink rmtree chmod lstat stat iterdir rglob utime touch rename "
    "savefig savez get_writer append_data from_xml_path from_binary_path mj_saveModel file_digest FileLock acquire "
    "Popen communicate killpg kill CDLL Thread Timer socket bind ViserServer SummaryWriter fdopen dup dup2 flush "
    "readline".split()
)
FUNCTIONS = {"open", "os.open", "webbrowser.open", "path.open", "np.load", "torch.load", "torch.save"}
FUNCTIONS |= {"torch.export.load", "tempfile.TemporaryDirectory", "tempfile.mkdtemp", "process.wait"}
DEVICES = ("cu.", "lib.nvrtc", "torch.cuda.")
# The same words for what touches nothing.
OTHERS = {"form.bind", "self.bind", "self.parameters.bind", "bind", "?.bind", "flush"}
IN_C = re.compile(r"\b(pthread_create|aligned_alloc|malloc)\(")


class Place(NamedTuple):
    """Where something is touched.

    file: within the package; function: by its qualified name, empty in C++; call: as it is written, without arguments
    """

    file: str
    function: str
    call: str

    def __str__(self) -> str:
        return f"{self.file}:{self.function}:{self.call}"


@functools.cache
def places(package: Path = PACKAGE) -> set[Place]:
    """All of them."""
    found = set()
    for path in package.rglob("*.py"):
        found |= {Place(str(path.relative_to(package)), *x) for x in calls(ast.parse(path.read_text()), ())}
    for path in (*package.rglob("*.cpp"), *package.rglob("*.h")):
        found |= {Place(str(path.relative_to(package)), "", name) for name in IN_C.findall(path.read_text())}
    return found


def calls(node: ast.AST, around: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Function and call of each place below a node."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        around = (*around, node.name)
    if isinstance(node, ast.Call):
        name = dotted(node.func)
        last = name.rpartition(".")[2]
        # Path.replace has one argument, and that of strings and of trees others.
        moves = last == "replace" and len(node.args) == 1 and not node.keywords
        touches = (last in METHODS and name not in OTHERS) or name in FUNCTIONS or name.startswith(DEVICES)
        if moves or touches:
            yield ".".join(around), name
    for child in ast.iter_child_nodes(node):
        yield from calls(child, around)


def dotted(node: ast.expr) -> str:
    """A name as it is written; "?" for what is computed."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"
