"""Does the training loss jump where an epoch begins, and what makes it jump?"""
