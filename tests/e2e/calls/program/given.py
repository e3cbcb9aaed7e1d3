"""What the program was launched with."""

args: list[str] = []
url = tag = ""
