"""The configuration files of Statewise, packaged so that the installed command finds them too."""
