"""Would loading this file run code? Every pickle in it is gone through, none is run. Standard library."""
