"""What a model is told in place of a tool's result.

`once mcp` says the same: src/frontends/mcp/words.cpp. A test compares them, so change both.
"""

from __future__ import annotations

import json
from typing import Any

WORDS = {
    "refused": "The tool {tool} was not called: {why}. Nothing was done.",
    "mismatch": (
        "The tool {tool} was not called: an earlier call had the same {key} and other arguments. This call did nothing. If "
        "you mean the earlier call, repeat it with exactly its arguments to get its result. Otherwise do not call again with "
        "changed arguments: ask the user."
    ),
    "unavailable": (
        "The tool {tool} was not called: the store that prevents double calls does not answer. Nothing was done. It is safe "
        "to call it again later with the same arguments."
    ),
    "in-progress": (
        "An earlier call of {tool} with the same {key} is still running. This call did nothing. Wait, then call it again "
        "with exactly the same arguments: you will get the result of the earlier call."
    ),
    "not-kept": (
        "An earlier call of {tool} with the same {key} was carried out, but its result is not kept. This call did nothing. "
        "Do not call it again: read what you need with another tool, or ask the user."
    ),
    "failed": (
        "An earlier call of {tool} with the same {key} failed for good: {why}. This call did nothing. Do not call it again: "
        "tell the user."
    ),
    "unknown": (
        "It is not known whether {tool} was carried out: {why}. It may have happened. Do not call it again, also not with "
        "other arguments. Tell the user that an operator must find out what happened, and decide."
    ),
    "replayed": (
        "(once: this is the result of an earlier call with the same {key}. Nothing was done now. If the user really wants it "
        "a second time, tell the user that it was not repeated.)"
    ),
    "superseded": (
        "(once: this call took so long that another call with the same {key} was made. This is the other call's result. It "
        "may have happened twice: tell the user.)"
    ),
    "lost": (
        "(once: this call was carried out, but could not be recorded. Another call with the same {key} may do it a second "
        "time: do not call it again, and tell the user.)"
    ),
}
BEGAN = "an earlier call of it began, and how it ended is not known"
NO_KEY = "the arguments have no key: {key} selects nothing of them, or is partly empty"
NO_RUN = "the run that it belongs to is missing"
RUN_KEY = "arguments in this run"


class Told(str):
    """A text for the model. `outcome` is for programs, as `once/outcome` in docs/mcp.md: "in-progress", "mismatch",
    "unknown", "refused", "unavailable", "not-kept", "replayed" or "lost"."""

    outcome: str

    def __new__(cls, outcome: str, text: str) -> Told:
        made = super().__new__(cls, text)
        made.outcome = outcome
        return made

    def __getnewargs__(self) -> Any:
        return self.outcome, str(self)


class Words:
    """Those about one tool."""

    def __init__(self, tool: str, key: str):
        self.key = key
        self._tool = json.dumps(tool, ensure_ascii=False)

    def text(self, name: str, why: str = "") -> str:
        return WORDS[name].format(tool=self._tool, key=self.key, why=" ".join(why.split()))

    def told(self, name: str, why: str = "") -> Told:
        return Told("replayed" if name == "failed" else name, self.text(name, why))
