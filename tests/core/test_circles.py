"""Modules of the core that import each other in a circle: those of docs/design.md, section 2, alone."""

import grimp

DECLARED = {
    frozenset(f"ampbridge.policies.{name}" for name in ("policy", "hardware", "native_lists"))
}
"""``Policy.auto``, ``to_native`` and ``from_native`` import the others when they are called."""


def circles(graph):
    """The groups of modules of which each imports, by way of others, every other one."""
    found = set()
    for module in graph.modules:
        upstream = graph.find_upstream_modules(module)
        circle = {other for other in upstream if module in graph.find_upstream_modules(other)}
        if circle - {module}:
            found.add(frozenset(circle | {module}))
    return found


def test_there_is_none_but_the_declared_one():
    assert circles(grimp.build_graph("ampbridge", exclude_type_checking_imports=True)) == DECLARED


def test_a_circle_would_be_found():
    graph = grimp.ImportGraph()
    for importer, imported in (("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")):
        graph.add_import(importer=importer, imported=imported)
    assert circles(graph) == {frozenset("abc")}
