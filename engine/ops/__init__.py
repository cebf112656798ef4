"""What a layer does to each row between its matrix products, by where the rows are.

A row's result depends on that row alone, and not on the rows beside it.
"""
