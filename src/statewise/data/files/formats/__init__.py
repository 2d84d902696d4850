"""One file format, one file: each opens a file and hands over its columns as they are."""
