"""The stubs name what the package has, and the package has what the stubs name."""
import ast, inspect, os
import weft

with open(os.path.join(os.path.dirname(weft.__file__), "__init__.pyi")) as f:
    tree = ast.parse(f.read())
for node in tree.body:
    if isinstance(node, ast.ClassDef):
        real = getattr(weft, node.name)
        named = set()
        for x in node.body:
            if isinstance(x, (ast.FunctionDef, ast.AnnAssign)):
                name = x.name if isinstance(x, ast.FunctionDef) else x.target.id
                named.add(name)
                if isinstance(x, ast.FunctionDef):
                    assert hasattr(real, name), f"{node.name}.{name} is in the stubs only"
        for name in vars(real):
            assert name.startswith("_") or name in named, f"{node.name}.{name} is missing in the stubs"
    elif isinstance(node, ast.FunctionDef):
        have, want = inspect.signature(getattr(weft, node.name)).parameters, [a.arg for a in node.args.args + node.args.kwonlyargs]
        assert [p for p in have if have[p].kind != inspect.Parameter.VAR_KEYWORD] == want, (node.name, list(have), want)
names = {n.name for n in tree.body if isinstance(n, (ast.ClassDef, ast.FunctionDef))} | {n.target.id for n in tree.body if isinstance(n, ast.AnnAssign)}
assert set(weft.__all__) <= names, set(weft.__all__) - names
print("well")
