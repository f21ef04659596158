#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes libattn/_abi.py from the public headers: constants, enumerations, structs and functions for ctypes.

    python3 generate_abi.py INCLUDE_DIR OUTPUT.py
    python3 generate_abi.py INCLUDE_DIR --check-program OUTPUT.c

The second form writes a C program that prints what a compiler makes of the same headers, in the form of
`describe()` of the generated module: the test compares the two. The parser knows the C of these headers
(include/attn/attn*.h) and stops with the line at anything else; nothing is guessed.
"""

import os
import re
import sys

HEADERS = ("attn_types.h", "attn_formats.h", "attn_plugin.h", "attn_plan.h", "attn.h")
# Prefixes of constants that are one enumeration: prefix, name in Python, base class.
ENUMS = (
    ("ATTN_ROLE_", "Role", "IntEnum"),
    ("ATTN_MASK_", "Mask", "IntEnum"),
    ("ATTN_DTYPE_", "DType", "IntEnum"),
    ("ATTN_KV_", "KVDType", "IntEnum"),
    ("ATTN_LAYOUT_", "Layout", "IntEnum"),
    ("ATTN_REASON_", "ReasonCode", "IntEnum"),
    ("ATTN_GRAPH_", "GraphSupport", "IntEnum"),
    ("ATTN_LAYER_", "LayerKind", "IntEnum"),
    ("ATTN_SPEC_", "SpecKind", "IntEnum"),
    ("ATTN_AXIS_", "Axis", "IntEnum"),
    ("ATTN_LOG_", "LogLevel", "IntEnum"),
    ("ATTN_E_", "ErrorCode", "IntEnum"),
    ("ATTN_F_", "Feature", "IntFlag"),
)
NOT_IN_ENUM = ("ATTN_KV_SCALE_", "ATTN_KV_MODEL_BITS", "ATTN_KV_DENSE_ROLES", "ATTN_KV_LATENT_ROLES")
SCALARS = {
    "int8_t": "c_int8",
    "uint8_t": "c_uint8",
    "int16_t": "c_int16",
    "uint16_t": "c_uint16",
    "int32_t": "c_int32",
    "uint32_t": "c_uint32",
    "int64_t": "c_int64",
    "uint64_t": "c_uint64",
    "int": "c_int",
    "size_t": "c_size_t",
    "float": "c_float",
    "double": "c_double",
    "char": "c_char",
}


class HeaderError(Exception):
    pass


def strip(text):
    """The declarations of a header: without comments, C++ parts and the bodies of inline functions."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"\\\n", " ", text)
    text = re.sub(
        r"#ifdef __cplusplus\n(.*?)(#else\n(.*?))?#endif", lambda m: m.group(3) or "", text, flags=re.S
    )
    out, at = [], 0
    for found in re.finditer(r"static inline [^;{]*\{", text):
        if found.start() < at:
            continue
        depth, end = 1, found.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        out.append(text[at : found.start()])
        at = end
    return "".join(out) + text[at:]


def value_of(expression, known):
    """The number of a constant expression of the headers, or None if it is no number."""
    text = re.sub(r"U?INT(?:32|64)_C\((\w+)\)", r"\1", expression)
    text = re.sub(r"\b(\d+)[uUlL]+\b", r"\1", text)
    if not re.fullmatch(r"[\w\s()+\-<|]+", text):
        return None
    names = set(re.findall(r"[A-Za-z_]\w*", re.sub(r"0x[0-9a-fA-F]+", "0", text)))
    if not names <= set(known):
        return None
    return eval(text, {"__builtins__": {}}, known)  # digits, names of constants and operators alone


def constants_of(text, known):
    for line in re.finditer(r"^#define (ATTN_\w+) +(.+)$", text, flags=re.M):
        number = value_of(line.group(2).strip(), known)
        if number is not None:
            known[line.group(1)] = number
        elif re.fullmatch(r'"[^"]*"', line.group(2).strip()):
            known[line.group(1)] = line.group(2).strip().strip('"')
    for body in re.finditer(r"\benum\s*\{([^}]*)\}", text):
        following = 0
        for item in body.group(1).split(","):
            name, _, expression = (part.strip() for part in item.partition("="))
            if not name:
                continue
            number = value_of(expression, known) if expression else following
            if number is None:
                raise HeaderError(f"enum: cannot read '{item.strip()}'")
            known[name] = number
            following = number + 1


def ctype_of(text, structs):
    """The ctypes name of a C type."""
    words = text.replace("*", " * ").split()
    if "*" in words or "(" in text:
        base = [w for w in words if w not in ("const", "*")]
        return "c_char_p" if base == ["char"] and words.count("*") == 1 else "c_void_p"
    words = [w for w in words if w not in ("const", "struct")]
    if len(words) == 1 and words[0] in SCALARS:
        return SCALARS[words[0]]
    if len(words) == 1 and words[0] in structs:
        return words[0]
    raise HeaderError(f"unknown type '{text}'")


def members_of(body, structs, known):
    """[(name, ctypes expression)] of a struct's body."""
    members = []
    for declaration in body.split(";"):
        declaration = " ".join(declaration.split())
        if not declaration:
            continue
        function = re.fullmatch(r".*\(\*(\w+)\)\(.*\)", declaration)
        if function:
            members.append((function.group(1), "c_void_p"))
            continue
        first = re.fullmatch(r"((?:const |struct )*\w+(?: const)?) ?(.*)", declaration)
        if not first:
            raise HeaderError(f"cannot read the member '{declaration}'")
        base = first.group(1)
        for declarator in first.group(2).split(","):
            one = re.fullmatch(r"\s*((?:\*\s*(?:const\b)?\s*)*)(\w+)((?:\[\w+\])*)", declarator)
            if not one:
                raise HeaderError(f"cannot read the member '{declaration}'")
            ctype = ctype_of(base + one.group(1), structs)
            for size in reversed(re.findall(r"\[(\w+)\]", one.group(3))):
                ctype = f"{ctype} * {known[size] if size in known else int(size)}"
            members.append((one.group(2), ctype))
    return members


def structs_of(text, structs, known):
    # C++'s "struct X;" and opaque types have no body and are c_void_p wherever they are pointed to
    for found in re.finditer(r"typedef struct (\w+)\s*\{(.*?)\}\s*(\w+)\s*;", text, flags=re.S):
        structs[found.group(3)] = members_of(found.group(2), structs, known)


def functions_of(text, structs, functions):
    body = re.sub(r"typedef struct \w+\s*\{.*?\}\s*\w+\s*;", "", text, flags=re.S)
    body = re.sub(r"^#.*$", "", body, flags=re.M)
    for found in re.finditer(r"([\w][\w \n*]*?[ *])(attn_\w+)\(([^;{}]*)\)\s*;", body):
        result, name, arguments = found.groups()
        types = []
        flat, depth = [""], 0
        for letter in arguments:
            depth += {"(": 1, ")": -1}.get(letter, 0)
            if letter == "," and depth == 0:
                flat.append("")
            else:
                flat[-1] += letter
        for argument in (" ".join(a.split()) for a in flat):
            if argument in ("", "void"):
                continue
            argument = re.sub(r"/\*.*?\*/", "", argument).strip()
            if "(" in argument or "[" in argument:
                types.append("c_void_p")
                continue
            types.append(ctype_of(re.sub(r"(\w+)$", "", argument), structs))
        result = " ".join(result.split())
        functions[name] = ("None" if result == "void" else ctype_of(result, structs), types)


def read(include):
    # dlpack.h's two structs are part of the border but not ours to parse: DLPack fixes them for ever
    known, structs, functions = {}, {"DLDataType": None, "DLTensor": None}, {}
    for name in HEADERS:
        with open(os.path.join(include, "attn", name), encoding="utf-8") as file:
            text = strip(file.read())
        try:
            constants_of(text, known)
            structs_of(text, structs, known)
            functions_of(text, structs, functions)
        except (HeaderError, KeyError) as error:
            raise SystemExit(f"generate_abi.py: {name}: {error}; teach this script that C") from error
    return known, structs, functions


PRELUDE = '''# SPDX-License-Identifier: Apache-2.0
"""Generated by generate_abi.py from include/attn/*.h. Do not edit.

Constants as in C; enumerations for them; one ctypes.Structure a struct, of the same name, with struct_size
filled in; FUNCTIONS: name -> (result, arguments). Pointers are c_void_p, strings c_char_p.
"""
# mypy: disable-error-code="misc"
from ctypes import (
    Structure, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint16,
    c_uint32, c_uint64, c_void_p, sizeof)
from enum import IntEnum, IntFlag
from typing import Any


class DLDataType(Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class DLTensor(Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32),
                ("dtype", DLDataType), ("shape", c_void_p), ("strides", c_void_p), ("byte_offset", c_uint64)]


class Sized(Structure):
    """A struct that begins with struct_size."""

    def __init__(self, **members: Any) -> None:
        super().__init__(**members)
        self.struct_size = sizeof(self)


'''


def write_module(known, structs, functions):
    out = [PRELUDE]
    out += [f"{name} = {number!r}\n" for name, number in known.items()]
    for prefix, name, base in ENUMS:
        out.append(f"\n\nclass {name}({base}):\n")
        for constant, number in known.items():
            if (
                constant.startswith(prefix)
                and not constant.startswith(NOT_IN_ENUM)
                and not constant.endswith("_")
            ):
                out.append(f"    {constant[len(prefix) :]} = {number}\n")
    for name, members in structs.items():
        if members is None:
            continue
        base = "Sized" if members[0] == ("struct_size", "c_uint32") else "Structure"
        out.append(f"\n\nclass {name}({base}):\n    _fields_ = [\n")
        out += [f'        ("{member}", {ctype}),\n' for member, ctype in members]
        out.append("    ]\n")
    out.append("\n\nSTRUCTS: dict[str, Any] = {\n")
    out += [f'    "{name}": {name},\n' for name in structs]
    out.append("}\nCONSTANTS: dict[str, int] = {\n")
    out += [f'    "{name}": {number},\n' for name, number in known.items() if isinstance(number, int)]
    out.append("}\nFUNCTIONS: dict[str, tuple[Any, list[Any]]] = {\n")
    out += [
        f'    "{name}": ({result}, [{", ".join(types)}]),\n' for name, (result, types) in functions.items()
    ]
    out.append('''}


def describe() -> str:
    """Sizes, offsets and constants, a line each, as generate_abi.py's C program prints them."""
    lines = []
    for name, struct in STRUCTS.items():
        lines.append(f"{name} {sizeof(struct)}")
        for member, *_ in struct._fields_:
            if (name, member) not in (("DLTensor", "device_type"), ("DLTensor", "device_id")):
                field = getattr(struct, member)
                lines.append(f"{name}.{member} {field.offset} {field.size}")
    lines += [f"{name} {number & 0xffffffffffffffff}" for name, number in CONSTANTS.items()]
    return "\\n".join(lines) + "\\n"
''')
    return "".join(out)


def write_program(known, structs):
    out = ["#include <stdio.h>\n"] + [f"#include <attn/{name}>\n" for name in HEADERS]
    out.append("int main(void) {\n")
    dlpack = {
        "DLDataType": ("code", "bits", "lanes"),
        "DLTensor": ("data", "ndim", "dtype", "shape", "strides", "byte_offset"),
    }
    for name, members in structs.items():
        out.append(f'    printf("{name} %zu\\n", sizeof({name}));\n')
        for member in dlpack.get(name) or [m for m, _ in members]:
            out.append(
                f'    printf("{name}.{member} %zu %zu\\n", offsetof({name}, {member}), '
                f"sizeof((({name} *)0)->{member}));\n"
            )
    for name, number in known.items():
        if isinstance(number, int):
            out.append(f'    printf("{name} %llu\\n", (unsigned long long)({name}));\n')
    return "".join(out) + "    return 0;\n}\n"


def main(arguments):
    if len(arguments) not in (2, 3) or (len(arguments) == 3 and arguments[1] != "--check-program"):
        raise SystemExit(__doc__)
    known, structs, functions = read(arguments[0])
    text = write_program(known, structs) if len(arguments) == 3 else write_module(known, structs, functions)
    partial = arguments[-1] + ".part"
    with open(partial, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(partial, arguments[-1])


if __name__ == "__main__":
    main(sys.argv[1:])
