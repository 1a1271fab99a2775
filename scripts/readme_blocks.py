"""Text in a README that a script wrote and will write again: what stands between two markers, each on a line of its own.

    <!-- generated: NAME -->
    ...
    <!-- end -->
"""
import re

_BLOCK = re.compile(r"^<!-- generated: (.+?) -->\n(.*?)^<!-- end -->$", re.M | re.S)


def names(text):
    """Names of the generated blocks of a README, in order."""
    return [match.group(1) for match in _BLOCK.finditer(text)]


def replace(text, name, content):
    """The README with `content` in its block `name`."""
    found = [match for match in _BLOCK.finditer(text) if match.group(1) == name]
    if len(found) != 1:
        raise SystemExit(f"there should be one block <!-- generated: {name} --> ... <!-- end -->, not {len(found)}")
    begin, end = found[0].span(2)
    return text[:begin] + content.strip("\n") + "\n" + text[end:]


def table(header, rows, numbers_from=1):
    """A Markdown table; columns from `numbers_from` on are aligned to the right."""
    rule = [":--" if i < numbers_from else "--:" for i in range(len(header))]
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in [header, rule, *rows])


def fenced(text):
    """Program output as it is."""
    return "```text\n" + text.strip("\n") + "\n```"


def fastest_in_turn(layouts, repeat, run):
    """{(ranks, options): the fastest of `repeat` runs}. The layouts take turns, so that a busy minute hits all alike."""
    best = {}
    for _ in range(repeat):
        for layout in layouts:
            now = run(*layout)
            if layout not in best or now.milliseconds() < best[layout].milliseconds():
                best[layout] = now
    return best
