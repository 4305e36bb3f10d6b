raise ImportError("torch was imported")
