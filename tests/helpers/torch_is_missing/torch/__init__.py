raise ModuleNotFoundError("no torch", name="torch")
