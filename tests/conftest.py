from hypothesis import settings

settings.register_profile("zoedge", deadline=None, derandomize=True)
settings.load_profile("zoedge")
