"""Files of a release: checks of the tree, sdist, wheels, chart, bill of materials, checksums."""
