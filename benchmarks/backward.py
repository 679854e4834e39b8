"""How fast is the backward pass, and what does training need that torch leaves to whole score matrices?"""

from rootdk.bench import script

if __name__ == "__main__":
    script.main("backward")
