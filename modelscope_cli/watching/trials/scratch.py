import shutil
from pathlib import Path
class Laid:
    def __init__(s, script, cwd, a, b): s.script, s.cwd, s._a, s._b = script, cwd, str(a), str(b)
    def moved(s, t): return t.replace(s._a, s._b)
    def original(s, t): return t.replace(s._b, s._a)
class Snapshot:
    @classmethod
    def take(cls, script, cwd, into, *, before=None, without=()):
        self = cls(); self.script, self.cwd, self.into = script, cwd, into
        shutil.copytree(script.parent, into, ignore=shutil.ignore_patterns("__pycache__", ".git"))
        return self
    def lay(self, place):
        shutil.copytree(self.into, place)
        return Laid(place / self.script.name, place, self.script.parent, place)
