"""Comparison of the virtual methods in torch's CUDA headers with those that our allocators forward.

Reads C++ as text; what it cannot parse fails the test.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# CUDAAllocator implements this overload with the other recordStream, which we override.
NOT_OVERRIDABLE = {"recordStream(const DataPtr&, Stream)"}
# Forwarded by a function that takes the upstream allocator.
FORWARDING_FUNCTIONS = {"recordStream": "record_stream_untracked(next(), block, stream)"}


@dataclass(frozen=True)
class Method:
    """A virtual member function. `signature` does not depend on the names of its parameters."""

    signature: str
    name: str
    parameters: tuple[str, ...]
    body: str


def parse_release(version: str) -> tuple[int, int]:
    """Return (2, 11) for 2.11.0+cu130."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def select_release(text: str, release: tuple[int, int]) -> str:
    """Remove the lines that the guards in our header exclude for a release of torch. Other conditions stay."""
    included, open_guards = [], []  # by open #if: are its lines included? None if it is not a guard
    for line in text.splitlines():
        guard = re.fullmatch(r"#if ALLOCTRACE_TORCH_AT_LEAST\((\d+), (\d+)\)", line)
        if re.match(r"#\s*if", line):
            open_guards.append(release >= (int(guard[1]), int(guard[2])) if guard else None)
        elif line.startswith("#else") and open_guards[-1] is not None:
            open_guards[-1] = not open_guards[-1]
        elif line.startswith("#endif"):
            open_guards.pop()
        elif False not in open_guards:
            included.append(line)
    return "\n".join(included)


def strip_comments(text: str) -> str:
    """Remove comments, and the contents of strings, in which brackets need not match."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)
    text = re.sub(r'"(\\.|[^"\\\n])*"', '""', text)
    return re.sub(r"(?m)^\s*#.*(\\\n.*)*$", " ", text)


def find_class(text: str, name: str) -> tuple[str, str] | None:
    """Return the base clause and the body of a class."""
    head = re.search(rf"\b(?:class|struct)\s+(?:\w+\s+)?{name}\b(?:\s+final)?\s*(?::([^{{;]*))?\{{", text)
    if not head:
        return None
    depth, position = 1, head.end()
    while depth:
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        position += 1
    return head.group(1) or "", text[head.end() : position - 1]


def split_declarations(body: str) -> list[tuple[str, str]]:
    """Return the declarations of a class, each with the body of its function, "" if there is none."""
    members, text, code, parentheses, braces = [], "", "", 0, 0
    for character in body:
        if parentheses == 0 and character == "{":
            braces += 1
        if braces:
            code += character
            if parentheses == 0 and character == "}":
                braces -= 1
                if braces == 0:
                    members.append((text.strip(), code))
                    text = code = ""
            continue
        parentheses += {"(": 1, ")": -1}.get(character, 0)
        if parentheses == 0 and character == ";":
            members.append((text.strip(), ""))
            text = ""
        else:
            text += character
    return [(re.sub(r"^(\s*(public|private|protected)\s*:)+", "", text).strip(), code) for text, code in members]


def split_parameters(text: str) -> list[str]:
    parts, depth = [""], 0
    for character in text:
        depth += {"<": 1, "(": 1, "{": 1, ">": -1, ")": -1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def split_type_and_name(parameter: str) -> tuple[str, str]:
    parameter = re.sub(r"\b(std|c10|at|cuda|native|CUDACachingAllocator|CachingDeviceAllocator)::", "", parameter)
    parameter = re.sub(r"\s*=.*$", "", parameter, flags=re.DOTALL)
    parameter = re.sub(r"\s+", " ", parameter).strip()
    match = re.fullmatch(r"(.*[\w>&*][ &*])\s*(\w+)", parameter)
    if match and match.group(1).strip() != "const":
        parameter, name = match.group(1), match.group(2)
    else:
        name = ""
    kind = re.sub(r"\s*([&*<>,])\s*", lambda sign: sign.group(1) + (" " if sign.group(1) == "," else ""), parameter)
    return kind.strip(), name


def find_methods(body: str, keyword: str) -> dict[str, Method]:
    """Return the member functions declared with `keyword` ("virtual" or "override"), without destructors."""
    methods = {}
    for text, function_body in split_declarations(body):
        if not re.search(rf"\b{keyword}\b", text) or "~" in text:
            continue
        match = re.match(r"(.*?)\b(\w+)\s*\((.*)\)\s*(const)?[\s\w]*(=\s*0\s*)?$", text, flags=re.DOTALL)
        assert match, f"cannot parse: {text}"
        parameters = [split_type_and_name(part) for part in split_parameters(match.group(3))]
        signature = f"{match.group(2)}({', '.join(kind for kind, _ in parameters)})"
        if match.group(4):
            signature += " const"
        methods[signature] = Method(signature, match.group(2), tuple(name for _, name in parameters), function_body)
    return methods


def require_class(texts: list[str], name: str) -> tuple[str, str]:
    for text in texts:
        if parts := find_class(strip_comments(text), name):
            return parts
    raise AssertionError(f"class {name} not found: add its file to the test")


def virtual_methods(headers: list[str], name: str) -> dict[str, Method]:
    """Return the virtual methods of a class and all its bases."""
    base_clause, body = require_class(headers, name)
    methods = {}
    for base in re.findall(r"(?:public|protected|private)\s+([\w:]+)", base_clause):
        methods.update(virtual_methods(headers, base.split("::")[-1]))
    return methods | find_methods(body, "virtual")


def find_overrides(source: str, name: str) -> dict[str, Method]:
    """Return the methods that a class overrides, itself or in bases in the same text."""
    base_clause, body = require_class([source], name)
    methods = {}
    for base in re.findall(r"public\s+([\w:]+)", base_clause):
        if find_class(strip_comments(source), base):
            methods.update(find_overrides(source, base))
    return methods | find_methods(body, "override")


def find_forwarding_errors(headers: list[str], base: str, source: str, ours: str) -> list[str]:
    """Return an error for each virtual method of `base` that `ours` does not override and forward unchanged."""
    declared = virtual_methods(headers, base)
    overridden = find_overrides(source, ours)
    absent = sorted(declared.keys() - overridden.keys() - NOT_OVERRIDABLE)
    errors = [f"{name}: in torch's header, not overridden" for name in absent]
    errors += [f"{name}: overridden, not in torch's header" for name in sorted(overridden.keys() - declared.keys())]
    for method in overridden.values():
        arguments = r"\s*,\s*".join(rf"(?:std::move\(\s*{name}\s*\)|{name})" for name in method.parameters)
        call = rf"(?:next\(\)\.|upstream_->){method.name}\(\s*{arguments}\s*\)"
        function = FORWARDING_FUNCTIONS.get(method.name)
        if not re.search(call, method.body) and not (function and function in method.body):
            errors.append(f"{method.signature}: not forwarded with its own parameters")
    return errors
