"""The table of CMake components in docs/install.md has each of them, and what CMakeLists.txt says that it needs.

components_test.py --write writes the last two columns again. The second one is by hand.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs/install.md"
TABLE = re.compile(r"(?<=\| component \| what it is \| with it come \| libraries, in Debian \|\n\|---\|---\|---\|---\|\n)"
                   r"(?:\|.*\n)+")
DEBIAN = {"GTest": "libgtest-dev", "OpenSSL": "libssl-dev", "PostgreSQL": "libpq-dev", "SQLite3": "libsqlite3-dev",
          "Threads": None, "ZLIB": "zlib1g-dev", "cjose": "libcjose-dev", "nlohmann_json": "nlohmann-json3-dev",
          "zstd": "libzstd-dev"}


def declared():
    """Component -> (what it names as dependencies, its packages)."""
    out = {}
    for file in sorted((ROOT / "src").rglob("CMakeLists.txt")):
        text = re.sub(r"#.*", "", file.read_text(encoding="utf-8"))
        for call in re.findall(r"once_component\(\s*(.*?)\)\n", text, re.S):
            # Variables that options empty: with all of them on.
            call = re.sub(r"\$\{(\w+)\}", lambda name: " ".join(
                value for value in re.findall(rf"set\({name[1]} ([^)]*)\)", text) if value != '""'), call)
            words = re.findall(r'"[^"]*"|\S+', call)
            if "INTERNAL" in words:  # Not installed.
                continue
            lists, at = {}, None
            for word in words[1:]:
                if re.fullmatch("SOURCES|PUBLIC_HEADERS|DEPENDS|PRIVATE_DEPENDS|PACKAGES", word):
                    at = lists.setdefault(word, [])
                else:
                    at.append(word.strip('"'))
            packages = {package.split()[0] for package in lists.get("PACKAGES", [])}
            depends = lists.get("DEPENDS", []) + lists.get("PRIVATE_DEPENDS", [])
            out[words[0]] = depends, packages | ({"cjose"} & set(depends))
    return out


def all_of(components, name, seen=None):
    seen = set() if seen is None else seen
    for other in components[name][0]:
        if other in components and other not in seen:
            seen.add(other)
            all_of(components, other, seen)
    return seen


def rows(components, purposes):
    for name in sorted(components):
        others = all_of(components, name)
        packages = set().union(*(components[each][1] for each in others | {name}))
        debian = sorted(filter(None, (DEBIAN[package] for package in packages)))
        yield "| " + " | ".join([f"`{name}`", purposes.get(name, "?"), ", ".join(sorted(others)) or "-",
                                 ", ".join(f"`{package}`" for package in debian) or "-"]) + " |\n"


def main():
    text = PAGE.read_text(encoding="utf-8")
    found = TABLE.search(text)
    if not found:
        sys.exit(f"{PAGE.relative_to(ROOT)} has no table of components")
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in found[0].splitlines()]
    wanted = "".join(rows(declared(), {row[0].strip("`"): row[1] for row in cells}))
    if "--write" in sys.argv[1:]:
        PAGE.write_text(text[:found.start()] + wanted + text[found.end():], encoding="utf-8")
    elif "| ? |" in wanted:
        sys.exit("a component is missing in the table, or has no text there:\n" + wanted)
    elif wanted != found[0]:
        sys.exit(f"the table of components is not as the build says; run {sys.argv[0]} --write\n{wanted}")
    print(f"{len(declared())} components")


if __name__ == "__main__":
    main()
