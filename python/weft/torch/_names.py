"""What a group is, which torch.compile reads while it traces a program."""

from torch._C._distributed_c10d import ProcessGroup


class Named(ProcessGroup):
    """A group that knows its place and its name."""

    def rank(self):
        return self._rank

    def size(self):
        return self._size

    def getRank(self):
        return self._rank

    def getSize(self):
        return self._size

    def name(self):
        return "weft"

    def getBackendName(self):
        return "weft"

    _get_backend_name = getBackendName

    @property
    def group_name(self):
        return self._name

    def _set_group_name(self, name):
        self._name = name

    @property
    def group_desc(self):
        return self._desc

    def _set_group_desc(self, text):
        self._desc = text
