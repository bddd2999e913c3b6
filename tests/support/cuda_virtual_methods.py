"""Comparison of the virtual methods in torch's CUDA headers with those that our allocators forward.

Reads C++ as text; what it cannot parse fails the test.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Not to be overridden: CUDAAllocator implements it with the other recordStream, which is.
IMPLEMENTED_BY_ANOTHER = {"recordStream(const DataPtr&, Stream)"}
# Passed on by a function that is given the upstream.
PASSED_ON_BY_A_FUNCTION = {"recordStream": "record_stream_untracked(next(), block, stream)"}


@dataclass(frozen=True)
class Method:
    """A virtual member function: `signature` distinguishes it from all others, whatever its parameters are called."""

    signature: str
    name: str
    parameters: tuple[str, ...]
    body: str


def release_of(version: str) -> tuple[int, int]:
    """Return (2, 11) for 2.11.0+cu130."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def for_release(text: str, release: tuple[int, int]) -> str:
    """Remove from our header what its guards leave out for a release of torch. Other conditions stay."""
    kept, open_guards = [], []  # of each #if that is open: whether its lines count, None where it is not a guard
    for line in text.splitlines():
        guard = re.fullmatch(r"#if ALLOCTRACE_TORCH_AT_LEAST\((\d+), (\d+)\)", line)
        if re.match(r"#\s*if", line):
            open_guards.append(release >= (int(guard[1]), int(guard[2])) if guard else None)
        elif line.startswith("#else") and open_guards[-1] is not None:
            open_guards[-1] = not open_guards[-1]
        elif line.startswith("#endif"):
            open_guards.pop()
        elif False not in open_guards:
            kept.append(line)
    return "\n".join(kept)


def without_comments(text: str) -> str:
    """Remove comments, and the contents of strings, in which brackets need not match."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)
    text = re.sub(r'"(\\.|[^"\\\n])*"', '""', text)
    return re.sub(r"(?m)^\s*#.*(\\\n.*)*$", " ", text)


def class_of(text: str, name: str) -> tuple[str, str] | None:
    """Return the base clause and the body of a class."""
    head = re.search(rf"\b(?:class|struct)\s+(?:\w+\s+)?{name}\b(?:\s+final)?\s*(?::([^{{;]*))?\{{", text)
    if not head:
        return None
    depth, position = 1, head.end()
    while depth:
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        position += 1
    return head.group(1) or "", text[head.end() : position - 1]


def statements(body: str) -> list[tuple[str, str]]:
    """Return the declarations of a class, each with the body of its function, or "" without a body."""
    found, text, inside, parentheses, braces = [], "", "", 0, 0
    for character in body:
        if parentheses == 0 and character == "{":
            braces += 1
        if braces:
            inside += character
            if parentheses == 0 and character == "}":
                braces -= 1
                if braces == 0:
                    found.append((text.strip(), inside))
                    text = inside = ""
            continue
        parentheses += {"(": 1, ")": -1}.get(character, 0)
        if parentheses == 0 and character == ";":
            found.append((text.strip(), ""))
            text = ""
        else:
            text += character
    return [(re.sub(r"^(\s*(public|private|protected)\s*:)+", "", text).strip(), inside) for text, inside in found]


def split_parameters(text: str) -> list[str]:
    parts, depth = [""], 0
    for character in text:
        depth += {"<": 1, "(": 1, "{": 1, ">": -1, ")": -1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def type_and_name(parameter: str) -> tuple[str, str]:
    parameter = re.sub(r"\b(std|c10|at|cuda|native|CUDACachingAllocator|CachingDeviceAllocator)::", "", parameter)
    parameter = re.sub(r"\s*=.*$", "", parameter, flags=re.DOTALL)
    parameter = re.sub(r"\s+", " ", parameter).strip()
    named = re.fullmatch(r"(.*[\w>&*][ &*])\s*(\w+)", parameter)
    if named and named.group(1).strip() != "const":
        parameter, name = named.group(1), named.group(2)
    else:
        name = ""
    kind = re.sub(r"\s*([&*<>,])\s*", lambda sign: sign.group(1) + (" " if sign.group(1) == "," else ""), parameter)
    return kind.strip(), name


def methods_of(body: str, word: str) -> dict[str, Method]:
    """Return the member functions declared with `word` ("virtual" or "override"), without destructors."""
    found = {}
    for text, inside in statements(body):
        if not re.search(rf"\b{word}\b", text) or "~" in text:
            continue
        declared = re.match(r"(.*?)\b(\w+)\s*\((.*)\)\s*(const)?[\s\w]*(=\s*0\s*)?$", text, flags=re.DOTALL)
        assert declared, f"not understood: {text}"
        parameters = [type_and_name(part) for part in split_parameters(declared.group(3))]
        signature = f"{declared.group(2)}({', '.join(kind for kind, _ in parameters)})"
        if declared.group(4):
            signature += " const"
        found[signature] = Method(signature, declared.group(2), tuple(name for _, name in parameters), inside)
    return found


def declaration(texts: list[str], name: str) -> tuple[str, str]:
    for text in texts:
        if known := class_of(without_comments(text), name):
            return known
    raise AssertionError(f"class {name} is in none of these files: name its file in the test")


def virtual_methods(headers: list[str], name: str) -> dict[str, Method]:
    """Return the virtual methods of a class and all its bases."""
    base_clause, body = declaration(headers, name)
    found = {}
    for base in re.findall(r"(?:public|protected|private)\s+([\w:]+)", base_clause):
        found.update(virtual_methods(headers, base.split("::")[-1]))
    return found | methods_of(body, "virtual")


def overrides(source: str, name: str) -> dict[str, Method]:
    """Return the methods that a class overrides, itself or in bases in the same text."""
    base_clause, body = declaration([source], name)
    found = {}
    for base in re.findall(r"public\s+([\w:]+)", base_clause):
        if class_of(without_comments(source), base):
            found.update(overrides(source, base))
    return found | methods_of(body, "override")


def not_forwarded(headers: list[str], base: str, source: str, ours: str) -> list[str]:
    """Return an error for each virtual method of `base` that `ours` does not override and pass on unchanged."""
    wanted = virtual_methods(headers, base)
    overridden = overrides(source, ours)
    absent = sorted(wanted.keys() - overridden.keys() - IMPLEMENTED_BY_ANOTHER)
    wrong = [f"{name}: in torch's header, not overridden" for name in absent]
    wrong += [f"{name}: overridden, not in torch's header" for name in sorted(overridden.keys() - wanted.keys())]
    for method in overridden.values():
        arguments = r"\s*,\s*".join(rf"(?:std::move\(\s*{name}\s*\)|{name})" for name in method.parameters)
        call = rf"(?:next\(\)\.|upstream_->){method.name}\(\s*{arguments}\s*\)"
        function = PASSED_ON_BY_A_FUNCTION.get(method.name)
        if not re.search(call, method.body) and not (function and function in method.body):
            wrong.append(f"{method.signature}: not passed on with its own parameters")
    return wrong
