"""From a request to cells, launches and rows."""
