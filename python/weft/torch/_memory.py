"""Tensors in memory that the other ranks see."""


def adopt(group, t):
    pass


def leave(group):
    pass


def empty(*size, dtype=None, group=None):
    raise NotImplementedError


def is_registered(t):
    return False
