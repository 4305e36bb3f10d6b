"""One block of a workload as a picture in text."""
