import sys; sys.path.insert(0, "/tmp")
def is_available(): return True
def forbid_writes(places):
    import only_write, os
    only_write.only_write(*map(str, places), *[p for p in ("/dev/shm","/dev/null","/dev/tty") if os.path.exists(p)])
