"""Hints for slips in a program's text that Python's own message does not explain."""

from __future__ import annotations

import ast

_IN_MAIN = "It goes into an asynchronous function, such as `async def main():`, which Tartlet runs."
_IN_ASYNC = "Make the function an asynchronous one: `async def`."


def hint(error: BaseException) -> str:
    """Say what to do about a syntax error; "" if there is nothing to add.

    Example:
        >>> hint(SyntaxError("'await' outside function"))[:38]
        'It goes into an asynchronous function,'
    """
    if not isinstance(error, SyntaxError) or not error.msg:
        return ""
    if error.msg == "'await' outside async function":
        return _IN_ASYNC
    outside = error.msg.startswith(("'await' outside", "'async ", "asynchronous comprehension outside"))
    return _IN_MAIN if outside else ""


def defines_alone(source: str) -> bool:
    r"""Return whether a text defines functions and runs nothing.

    Example:
        >>> defines_alone("import inferlet\nasync def mian(): pass")
        True
        >>> defines_alone("def go(): pass\ngo()"), defines_alone("answer = 42")
        (False, False)
    """
    body = ast.parse(source).body
    names = {part.name for part in body if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef))}
    return bool(names) and not any(_runs(part, names) for part in body)


def _runs(part: ast.stmt, names: set[str]) -> bool:
    """Return whether a statement does more than define names. Calls of the library don't count."""
    if isinstance(part, (ast.Assign, ast.AnnAssign)):
        return any(isinstance(node, ast.Name) and node.id in names for node in ast.walk(part))
    if isinstance(part, ast.Expr):
        return not isinstance(part.value, ast.Constant)
    return not isinstance(part, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
