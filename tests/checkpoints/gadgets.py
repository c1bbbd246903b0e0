"""Classes as libraries have them whose own code calls what their attributes hold; a hostile pickle sets these."""


class Proxy:
    """Passes on whatever is asked of it, as `werkzeug.LocalProxy` does."""

    def _made(self):
        return self.__dict__["make"]()

    def __hash__(self):
        return hash(self._made())

    def __eq__(self, other):
        return self._made() == other

    def __iter__(self):
        return iter(self._made())

    def __str__(self):
        return str(self._made())

    def __len__(self):
        return len(self._made())

    def __float__(self):
        return float(self._made())

    def __index__(self):
        return int(self._made())

    def __fspath__(self):
        return str(self._made())


class Equal:
    """Compares itself with every other key."""

    def __hash__(self):
        return 5

    def __eq__(self, other):
        return self.__dict__["make"]() is other


class Stored(dict):
    """Saves itself after each change, once it has been told how."""

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        self.__dict__.get("make", int)()


class Noted(list):
    """Tells of each item that is appended, once it has been told how."""

    def append(self, item):
        super().append(item)
        self.__dict__.get("make", int)()


class Replaced:
    """Closes its old state before it takes a new one."""

    def __setstate__(self, state):
        self.__dict__.get("make", int)()
        self.__dict__.update(state)


class Started:
    """Makes what it holds as soon as it has its state."""

    def __setstate__(self, state):
        state["make"]()


class Opened(str):
    """Writes the file that it names."""

    def __new__(cls, path):
        with open(path, "w"):
            return super().__new__(cls, path)


class Writer:
    """Opens a file at once."""

    def __init__(self, path):
        with open(path, "w"):
            pass


def write(path):
    with open(path, "w"):
        return path
