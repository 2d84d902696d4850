"""Texts that stand for a missing value in files of all vendors."""

# Any other text is a value. Listed in the cases that files hold: to compare is far cheaper than to lower every field.
MISSING = [
    *("", "NA", "na", "Na", "NaN", "nan", "NAN", "Nan", "null", "NULL", "Null", "None", "none", "NONE"),
    *("N/A", "n/a", "NaT"),
]
