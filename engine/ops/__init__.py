"""Row operations between a layer's matrix products, with one implementation per device.

A row's result depends on that row alone, not on the other rows.
"""
