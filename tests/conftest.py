import signal

from hypothesis import settings

settings.register_profile("zoedge", deadline=None, derandomize=True)
settings.load_profile("zoedge")

# A shell that starts this in the background has Ctrl-C ignored, and children inherit that; some tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)
