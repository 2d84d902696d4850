"""A typed schema from the signature of a constructor: an argument is written down once, in the code that uses it.

Signatures are read from the source text (`ast`), not by importing: importing Lightning costs seconds, and a typo should be
told at once.
"""

import ast
from dataclasses import dataclass, field, make_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import MISSING

PACKAGE = Path(__file__).parent


@cache
def schema_of(target: str, leave_out: frozenset[str] = frozenset(), *, partial: bool = False) -> type:
    """A dataclass with one typed field for each argument of the class or function `target`.

    An argument without a default becomes a mandatory value; ``**keywords`` continue in the base class, as they do in Python.
    """
    module, name = _Module.holding(target)
    fields: list[tuple[str, Any, Any]] = [("_target_", str, field(default=target))]
    if partial:
        fields.append(("_partial_", bool, field(default=True)))
    for argument, (holder, annotation, default) in _arguments(module, name).items():
        if argument not in leave_out:
            fields.append((argument, *_field(holder, annotation, default)))
    return make_dataclass(name, fields)


@dataclass(frozen=True)
class _Module:
    """The source of one module of this package."""

    name: str
    tree: ast.Module

    @classmethod
    @cache
    def load(cls, name: str) -> "_Module":
        path = PACKAGE.joinpath(*name.split(".")[1:])
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        return cls(name, ast.parse(path.read_text(encoding="utf-8")))

    @classmethod
    def holding(cls, target: str) -> "tuple[_Module, str]":
        module, _, name = target.rpartition(".")
        return cls.load(module), name

    def definition(self, name: str) -> "tuple[_Module, ast.ClassDef | ast.FunctionDef]":
        """The class or function of that name, here or where it is imported from."""
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                return self, node
        module, original = self._imported(name)
        return module.definition(original)

    def constant(self, expression: ast.expr) -> Any:
        """The value of a literal, or of a constant that is one, here or where it is imported from."""
        if not isinstance(expression, ast.Name):
            return ast.literal_eval(expression)
        for node in self.tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == expression.id for target in targets):
                return self.constant(node.value)  # type: ignore[attr-defined]
        module, name = self._imported(expression.id)
        return module.constant(ast.Name(id=name))

    def knows(self, name: str) -> bool:
        """Whether a name of this module is defined in this package."""
        try:
            self.definition(name)
        except LookupError:
            return False
        return True

    def _imported(self, name: str) -> "tuple[_Module, str]":
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("statewise"):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return _Module.load(str(node.module)), alias.name
        raise LookupError(f"{self.name} neither defines nor imports {name}")


Argument = tuple[_Module, ast.expr | None, ast.expr | None]  # where it stands, annotation, default


def _arguments(module: _Module, name: str) -> dict[str, Argument]:
    """The arguments of a function, of a dataclass, or of a class's constructor with those of its bases that ** stands for."""
    module, node = module.definition(name)
    if isinstance(node, ast.FunctionDef):
        return _signature(module, node)
    init = next((item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)
    if init is None and any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return {
            item.target.id: (module, item.annotation, item.value)
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        }
    own = _signature(module, init) if init else {}
    if init is None or init.args.kwarg is not None:
        bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
        for base in bases:
            own = {**own, **{key: value for key, value in _arguments(module, base).items() if key not in own}}
    return own


def _signature(module: _Module, function: ast.FunctionDef) -> dict[str, Argument]:
    arguments = function.args
    positional = [argument for argument in arguments.posonlyargs + arguments.args if argument.arg not in {"self", "cls"}]
    missing = [None] * (len(positional) - len(arguments.defaults))
    pairs = [*zip(positional, [*missing, *arguments.defaults], strict=False)]
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {argument.arg: (module, argument.annotation, default) for argument, default in pairs}


def _field(module: _Module, annotation: ast.expr | None, default: ast.expr | None) -> tuple[Any, Any]:
    if annotation is None:
        raise TypeError(f"an argument in {module.name} has no annotation: no schema can be made of it")
    kind = _type(module, annotation)
    if isinstance(kind, type) and hasattr(kind, "__dataclass_fields__"):
        return kind, field(default_factory=kind)
    if default is None:
        return kind, field(default=MISSING)
    value = module.constant(default)
    if isinstance(value, list | tuple | dict):
        plain = list(value) if isinstance(value, tuple) else value
        return kind, field(default_factory=lambda: plain.copy())
    return kind, field(default=value)


_PLAIN: dict[str, Any] = {"int": int, "float": float, "str": str, "bool": bool, "Any": Any, "list": list, "dict": dict}


def _type(module: _Module, annotation: ast.expr) -> Any:
    """The type that OmegaConf checks for an annotation: what it cannot express, the constructor checks itself."""
    match annotation:
        case ast.Constant(value=None):
            return None
        case ast.Constant(value=str(text)):
            return _type(module, ast.parse(text, mode="eval").body)
        case ast.Name(id=name) if name in _PLAIN:
            return _PLAIN[name]
        case ast.Name(id=name) if module.knows(name):
            holder, _ = module.definition(name)
            return schema_of(f"{holder.name}.{name}")
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _type(module, left) | _type(module, right)
        case ast.Subscript(value=ast.Name(id="list" | "Sequence" | "tuple"), slice=item):
            first = item.elts[0] if isinstance(item, ast.Tuple) else item
            return list[_type(module, first)]  # type: ignore[misc]
        case ast.Subscript(value=ast.Name(id="Literal")):
            return str
    return Any
