"""Columns that are computed from those of a file, named by expressions such as `zscore(log_return(close), 60)`."""
