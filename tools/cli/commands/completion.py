"""completion: has a shell complete raxlog's commands, options, choices and the names of streams and groups.

    raxlog ad<TAB>              the shell's function, printed by 'raxlog completion SHELL', asks for
      └─ RAXLOG_WORDS=ad raxlog completion bash ──> COMMANDS, or the arguments of a command ──> add
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
from collections.abc import Iterator

import raxlog

from ....storage.engine.open_options import BYTES
from ....storage.errors import RaxlogError
from ... import output
from ..arguments import LOADED, argument, command
from ..status import DONE, NO

_SCRIPTS = {
    "bash": r"""_raxlog() {
    local IFS=$'\n'
    COMPREPLY=($(RAXLOG_WORDS="${COMP_WORDS[*]:1:COMP_CWORD}" raxlog completion bash 2>/dev/null))
}
complete -o default -F _raxlog raxlog""",
    "zsh": r"""_raxlog() {
    local -a found
    found=(${(f)"$(RAXLOG_WORDS="${(F)words[2,CURRENT]}" raxlog completion zsh 2>/dev/null)"})
    if (($#found)); then _describe raxlog found; else _files; fi
}
compdef _raxlog raxlog""",
    "fish": r"""function _raxlog
    set -lx RAXLOG_WORDS (string join -- \n (commandline -opc)[2..] (commandline -ct) | string collect -N)
    set -l found (raxlog completion fish 2>/dev/null)
    or __fish_complete_path (commandline -ct)
    string join -- \n $found
end
complete -c raxlog -f -a '(_raxlog)'""",
}


@command(
    "completion", (argument("shell", metavar="SHELL", choices=list(_SCRIPTS), help="bash, zsh or fish"),),
    """Prints a script that the shell reads when it starts. Its function asks raxlog at each TAB, which takes
a tenth of a second, so raxlog must be on the shell's PATH.""",
    "raxlog completion fish | source            # in ~/.config/fish/config.fish",
    "# ~/.bashrc; for zsh the same with 'zsh' in ~/.zshrc, after compinit:",
    'command -v raxlog >/dev/null && eval "$(raxlog completion bash)"',
)
def _completion(args: argparse.Namespace) -> int:
    typed = os.environ.get("RAXLOG_WORDS")
    if typed is None:
        output.answer(args.json, {"shell": args.shell, "script": _SCRIPTS[args.shell]}, _SCRIPTS[args.shell])
        return DONE
    words = typed.removesuffix("\n" if args.shell == "fish" else "").split("\n")
    found = [(word, meaning) for word, meaning in _fitting(words[:-1], words[-1]) if word.startswith(words[-1])]
    for word, meaning in found:
        zsh = word.replace(":", "\\:") + f":{meaning}" * bool(meaning)
        output.print_text({"bash": word, "zsh": zsh, "fish": f"{word}\t{meaning}"}[args.shell])
    return DONE if found else NO


def _fitting(given: list[str], word: str) -> Iterator[tuple[str, str]]:
    """What may stand after the words ``given``, with its meaning; ``word`` is what there is of it."""
    from .. import COMMANDS  # noqa: PLC0415 - the table that has this module imported

    if not given or given[0] not in COMMANDS:
        yield from () if given else ((name, summary) for name, (_, summary) in COMMANDS.items())
        return
    name, (module, summary) = given[0], COMMANDS[given[0]]
    importlib.import_module(f".{module}", __package__)
    actions = LOADED[name].parser(name, summary)._actions
    options = {option: action for action in actions for option in action.option_strings}
    places = [action for action in actions if not action.option_strings]
    wanted = None  # the option that waits for its value
    for typed in given[1:]:
        if wanted is None and typed in options:
            wanted = None if options[typed].nargs == 0 else options[typed]
        else:
            places = places if wanted else places[1:]
            wanted = None
    if wanted is None and word.startswith("-"):
        yield from ((option, (action.help or "").partition(";")[0]) for option, action in options.items())
        return
    for action in [wanted] if wanted else places[:1]:
        yield from ((str(choice), "") for choice in action.choices or ())
        if wanted is None and action.dest == "stream":
            with contextlib.suppress(RaxlogError), raxlog.open(given[-1], readonly=True, encoding=BYTES) as store:
                yield from ((output.text(stream), "") for stream in store.streams())
        elif wanted is None and action.dest == "group":
            with contextlib.suppress(RaxlogError), raxlog.open(given[-2], readonly=True, encoding=BYTES) as store:
                yield from ((output.text(group.name), "") for group in store.stream(given[-1]).groups())
